"""A PostgreSQL server as a source. Its slot is the stream; exported snapshots copy its tables."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from cdc_pipeline.errors import SourceError, UsageError
from cdc_pipeline.record import TableName, decode_position, encode_position, parse_lsn
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.copied_rows import HeldPosition, WrittenPosition
from cdc_pipeline.sources.database import DatabaseSource
from cdc_pipeline.sources.known import FoundTable, KeptLog, KnownStream, NewBeginning
from cdc_pipeline.sources.postgres.catalogue import read_server, read_slot, table_names
from cdc_pipeline.sources.postgres.leaving import leave_server
from cdc_pipeline.sources.postgres.position import (
    SET_UP_WAITS,
    hold_position,
    is_held,
    lsn_text,
    reported_wait,
    snapshot_connection,
)
from cdc_pipeline.sources.postgres.session import MESSAGE_PREFIX, session
from cdc_pipeline.sources.postgres.slot import read_kept_log, replace_slot, warn_of_former_slot
from cdc_pipeline.sources.postgres.slot_guards import (
    check_publication_first,
    is_successor,
    refuse_gap,
    refuse_new_publication,
)
from cdc_pipeline.sources.postgres.statements import missing_on_source
from cdc_pipeline.steps import step

if TYPE_CHECKING:
    from cdc_pipeline.sources.postgres.survey import PostgresSurvey
    from cdc_pipeline.sources.postgres.table_copy import PostgresCopy

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresDatabase(DatabaseSource):
    """Implements `Source` for a PostgreSQL server."""

    url: str
    settings: PostgresSource

    def list_tables(self) -> tuple[str, ...]:
        """Leaves out partitions, which are read under the name of their table, and names with a dot in a part."""
        with session(self.url) as connection:
            names = table_names(connection)
        for parts in names:
            if any("." in part for part in parts):
                log.warning("a table with a dot in its name matches no pattern", table=".".join(parts))
        return tuple(".".join(parts) for parts in names if not any("." in part for part in parts))

    def missing_statements(self, known: KnownStream) -> tuple[str, ...]:
        from cdc_pipeline.sources.postgres.setup import plan_source

        with session(self.url) as connection:
            statements = missing_on_source(connection, self.settings, self.tables)
            if not statements:
                plan_source(connection, self.settings, self.tables, known.tables())
        return statements

    def survey(self, known: KnownStream, begin_again: Collection[TableName] = ()) -> "PostgresSurvey":
        """Surveys the server. If no table is registered and none can be read, raises the first refusal."""
        from cdc_pipeline.sources.postgres.setup import plan_source
        from cdc_pipeline.sources.postgres.survey import PostgresSurvey

        tables = known.tables()
        with session(self.url) as connection:
            plan = plan_source(connection, self.settings, self.tables, tables)
            if not tables and not plan.tables:
                raise next(iter(plan.refused.values()))
            registered = known.next_offset()  # read after the slot: a running consumer moves both, the offset first
            successor = is_successor(
                plan.server,
                plan.slot,
                url=self.url,
                stream=self.stream,
                known=known.identity(),
                registered=registered,
            )
            is_published = plan.publication is not None
            if registered is not None:
                refuse_gap(self.settings.slot, plan.slot, plan.server, registered, self._end_of_log)
                refuse_new_publication(self.settings, plan.server, is_published=is_published)
            else:
                check_publication_first(self.settings, plan.slot, plan.server, is_published=is_published)
            stale, mendable = plan.stale, plan.mendable
            again = stale.keys() & set(begin_again)
            if again:
                plan = plan_source(connection, self.settings, self.tables, tables, again)
        return PostgresSurvey(
            url=self.url,
            settings=self.settings,
            plan=plan,
            is_successor=successor,
            stale=stale,
            mendable=mendable,
            on_step=self.on_step,
        )

    def begin_again(self, registered: str, channel: str) -> NewBeginning:
        """Begins at a new slot. Raises SourceError if no table can be read, or the log ends before `registered`."""
        from cdc_pipeline.sources.postgres.setup import execute_plan, plan_source
        from cdc_pipeline.sources.postgres.survey import identity_of

        with session(self.url) as connection:
            plan = plan_source(connection, self.settings, self.tables, known={}, keeps_slot=False)
            if not plan.tables:
                raise next(iter(plan.refused.values()))
            if plan.server.end_position < decode_position(registered):
                raise SourceError(
                    f"the source's log ends at {lsn_text(plan.server.end_position)}",
                    expected=f"a log that has passed {lsn_text(decode_position(registered))}, up to which it is"
                    " registered",
                    remedy="run SELECT pg_switch_wal() on the source until it has, then try again; where that is too"
                    " far, begin another pipeline with a lake of its own",
                )
            # The publication must exist before the slot: the slot cannot decode changes from before the publication.
            with reported_wait(self.url, connection.info.backend_pid, SET_UP_WAITS):
                refused = execute_plan(connection, plan, self.on_step).refused
                with step(self.on_step, "source.replace_slot"):
                    position = replace_slot(connection, self.settings.slot)
            warn_of_former_slot(connection, channel, self.settings.slot)
        gap = f"{lsn_text(decode_position(registered))} to {lsn_text(position)}"
        identity = identity_of(plan.server, self.settings)
        return NewBeginning(identity=identity, offset=encode_position(position), gap=gap, refused=refused)

    def position_of(self, text: str) -> WrittenPosition:
        """Reads an LSN. Rows as of it contain the transactions that committed before it."""
        end, position = self._end_of_log(), None
        with suppress(ValueError):
            position = parse_lsn(text)
        if position is None or position > end:
            raise UsageError(
                f"--as-of {text!r} is no position of the source",
                expected=f"an LSN up to {lsn_text(end)}, where the log ends",
                remedy="give the consistent_point of a slot whose snapshot was exported, or an LSN that"
                " was read before the export began, as docs/how-to/exports.md says",
            )
        return WrittenPosition(position=position)

    @contextmanager
    def hold_position(self, purpose: str, *, name: str) -> Iterator[HeldPosition]:
        """Holds a position by a temporary slot. Waits until all running transactions have ended, and logs which."""
        with hold_position(self.url, _slot_name(purpose, name), self.on_step) as held:
            yield held

    def is_held(self, purpose: str, *, name: str) -> bool:
        return is_held(self.url, _slot_name(purpose, name))

    def send_marker(self, text: str) -> bool:
        with session(self.url) as connection, connection.cursor() as cursor:
            slot = read_slot(connection, self.settings.slot)
            with step(self.on_step, "source.mark"):
                cursor.execute("SELECT pg_logical_emit_message(true, %s, %s)", (MESSAGE_PREFIX, text))
                connection.commit()
        return slot is not None and slot.active_pid is not None

    @contextmanager
    def copy_at(self, exported: str) -> "Iterator[PostgresCopy]":
        from cdc_pipeline.sources.postgres.table_copy import PostgresCopy

        with snapshot_connection(self.url, exported) as connection:
            yield PostgresCopy(connection=connection, on_step=self.on_step)

    def check_copied(self, table: FoundTable, parts: int) -> None:
        from cdc_pipeline.sources.postgres.table_copy import refuse_rewritten

        with step(self.on_step, "source.check"), session(self.url) as connection:
            refuse_rewritten(connection, table, needs_file=parts > 1 or self._outlasts_truncate(table.name))

    def _outlasts_truncate(self, name: TableName) -> bool:
        """Whether the lake needs the rows of the cutoff also if TRUNCATE, which older snapshots see, follows them."""
        of_table = (table for table in self.tables if table.table == name)
        return any(table.history or table.truncate == "ignore" for table in of_table)

    def kept_log(self) -> KeptLog | None:
        with step(self.on_step, "source_log.read"), session(self.url) as connection:
            return read_kept_log(connection, self.settings)

    def leave(self, tables: Collection[TableName], *, whole: bool) -> tuple[str, ...]:
        """Removes the tables from the publication; with `whole`, also drops the slot. See `leave_server`."""
        return leave_server(self.url, self.settings, tables, self.on_step, whole=whole)

    def _end_of_log(self) -> int:
        with step(self.on_step, "source.check"), session(self.url) as connection:
            return read_server(connection).end_position


def _slot_name(purpose: str, name: str) -> str:
    return f"cdc_{purpose}_{name}"
