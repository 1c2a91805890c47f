"""Surveys a PostgreSQL source, creates what it lacks, and opens the stream of its slot."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from cdc_pipeline.errors import SourceError, TableStale
from cdc_pipeline.record import TableName, decode_position, encode_position
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.known import FoundTable, StreamIdentity, StreamStart
from cdc_pipeline.sources.postgres.catalogue import Server, read_server, read_slot
from cdc_pipeline.sources.postgres.planned_table import PlannedTable
from cdc_pipeline.sources.postgres.position import SET_UP_WAITS, reported_wait
from cdc_pipeline.sources.postgres.publication import read_publication
from cdc_pipeline.sources.postgres.session import session, warn_of_encoding
from cdc_pipeline.sources.postgres.setup import SourcePlan, execute_plan
from cdc_pipeline.sources.postgres.slot_guards import refuse_gap
from cdc_pipeline.sources.postgres.stream import PostgresStream
from cdc_pipeline.steps import OnStep


def identity_of(server: Server, settings: PostgresSource) -> StreamIdentity:
    return StreamIdentity(system=server.system_identifier, timeline=server.timeline, channel=settings.slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSurvey:
    """Implements `SourceSurvey`. `stale` and `mendable`: as found before any stale table was treated as a new one."""

    url: str
    settings: PostgresSource
    plan: SourcePlan
    is_successor: bool
    stale: Mapping[TableName, TableStale]
    mendable: Collection[TableName]
    on_step: OnStep

    @property
    def identity(self) -> StreamIdentity:
        return identity_of(self.plan.server, self.settings)

    @property
    def stream_partitions(self) -> Collection[int]:
        return range(self.settings.stream_partitions)

    @property
    def first_offset(self) -> str:
        """The position that the slot has confirmed."""
        return encode_position(self._confirmed_position())

    @property
    def tables(self) -> tuple[FoundTable, ...]:
        marks = self.marks
        return tuple(
            FoundTable(
                name=table.name,
                source_id=table.oid,
                key=table.key,
                schema=table.schema,
                published_as=marks.get(table.name, ""),
                description=tuple(shape.to_json() for shape in table.shapes),
                is_changing=len(table.shapes) > 1,
            )
            for table in self.plan.tables
        )

    @property
    def refused(self) -> Mapping[TableName, SourceError]:
        """Includes stale tables that were treated as new ones and cannot be read."""
        return self.plan.refused

    @property
    def resting(self) -> Mapping[int, SourceError]:
        return {}

    @property
    def statements(self) -> tuple[str, ...]:
        return self.plan.statements

    @property
    def marks(self) -> dict[TableName, str]:
        """The publication's mark of each table that can be read; tables that it does not hold are left out."""
        publication = self.plan.publication
        found = {} if publication is None else {table.name: publication.of(table.name) for table in self.plan.tables}
        return {name: published.mark for name, published in found.items() if published is not None}

    def set_up(self) -> "PostgresSurvey":
        """Adds the tables to the publication and creates the slot. Durable on return, idempotent.

        In the result, `statements` are those that were run, and `refused` includes tables that the role may not publish
        or that the publication does not hold under their own name.
        """
        source = self.settings
        with session(self.url) as connection:
            warn_of_encoding(connection)
            with reported_wait(self.url, connection.info.backend_pid, SET_UP_WAITS):
                done_plan = execute_plan(connection, self.plan, self.on_step)
            plan = replace(
                done_plan,
                slot=read_slot(connection, source.slot),
                publication=read_publication(connection, source.publication),
            )
        done = replace(self, plan=plan)
        if plan.slot is None:
            raise SourceError(f"the slot {source.slot} was not created", remedy="run cdc setup-source again")
        marks = done.marks
        hidden = {table.name: _hidden(table.name, source) for table in plan.tables if table.name not in marks}
        left = tuple(table for table in plan.tables if table.name in marks)
        return replace(done, plan=replace(plan, tables=left, refused={**hidden, **plan.refused}))

    def check_ready(self) -> None:
        self._confirmed_position()

    def _confirmed_position(self) -> int:
        slot = self.plan.slot
        if slot is None or slot.confirmed_position is None:
            raise SourceError(
                f"there is no slot {self.settings.slot} on the source",
                expected="the slot that holds the changes back until they are read",
                remedy="run cdc setup-source",
            )
        return slot.confirmed_position

    def open(self, start: StreamStart) -> PostgresStream:
        """Opens the slot for the registered tables. Then checks the slot again, since nobody else can move it now."""
        position = decode_position(min(reached.offset for reached in start.progress.values()))
        stream = PostgresStream(
            url=self.url,
            slot=self.settings.slot,
            publication=self.settings.publication,
            stream_partitions=self.settings.stream_partitions,
            tables=self._registered(start),
            marks={name: mark for name, mark in self.marks.items() if name in start.tables},
            server=self.plan.server,
            start=position,
            passes=self._transaction_end(start, position),
            on_step=self.on_step,
        )
        try:
            self._refuse_moved_slot(position)
        except BaseException:
            stream.close()
            raise
        return stream

    def _registered(self, start: StreamStart) -> tuple[PlannedTable, ...]:
        return tuple(table for table in self.plan.tables if table.name in start.tables)

    def _transaction_end(self, start: StreamStart, position: int) -> int | None:
        """Returns where the transaction ends that the slot sends again.

        Returns None if the slot sends none again, or if the last cut was not at the end of a transaction.
        """
        cut, slot = start.last_cut, self.plan.slot
        if cut is None or cut.requested or cut.position != encode_position(position):
            return None
        confirmed = None if slot is None else slot.confirmed_position
        return position if confirmed is not None and confirmed < position else None

    def _refuse_moved_slot(self, position: int) -> None:
        with session(self.url) as connection:
            slot, server = read_slot(connection, self.settings.slot), read_server(connection)

        def end_of_log() -> int:
            with session(self.url) as connection:
                return read_server(connection).end_position

        refuse_gap(self.settings.slot, slot, server, encode_position(position), end_of_log)


def _hidden(name: TableName, source: PostgresSource) -> SourceError:
    return SourceError(
        f"the publication {source.publication} does not hold {name} under its own name",
        expected="publish_via_partition_root = true where a table has partitions",
        remedy=f'run ALTER PUBLICATION "{source.publication}" SET (publish_via_partition_root = true)',
    )
