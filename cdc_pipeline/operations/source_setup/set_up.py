"""Makes the source ready for the tables of pipeline.yml, and registers the stream and its tables."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import structlog

from cdc_pipeline.consume.cut_chain import CutChain
from cdc_pipeline.errors import SourceError
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.operations.source_setup.registered import RegisteredStream
from cdc_pipeline.operations.source_setup.stale_tables import StaleMarks, note_refused
from cdc_pipeline.operations.source_setup.tables import TableRegistration
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.protocol import Source

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """The result of a set-up: the tables that are ready, and the statements that were run on the source.

    `refused`: the tables that are not ready, each with the reason. They do not stop the other tables.
    """

    tables: tuple[TableName, ...]
    statements: tuple[str, ...] = ()
    refused: Mapping[TableName, SourceError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSetup:
    """Makes a source ready, and registers its stream and tables."""

    registered: RegisteredStream
    source: Source
    store: MetadataStore
    chain: CutChain
    tables: TableRegistration
    stale: StaleMarks

    def missing_sql(self) -> tuple[str, ...]:
        """Returns the statements that an administrator has to run before the source can be read. Changes nothing."""
        return self.source.missing_statements(self.registered)

    def set_up(self, *, begin_again: Collection[TableName] = ()) -> SetUp:
        """Makes the source ready and registers stream and tables. Durable on return, idempotent.

        Stale tables in `begin_again` are read again from now on, for their new snapshot. Registered tables whose
        changes cannot be read further become stale. Tables that cannot be read are in `refused`. An error that stops
        the whole stream is raised.
        """
        self.chain.catch_up()
        before = self.registered.tables()
        survey = self.source.survey(self.registered, begin_again)
        # The rows of a database are dealt to a fixed number of stream partitions. Other sources have their own, and may
        # add some.
        self.registered.register(survey, self.source.capabilities)
        self.stale.note_stale(survey, before)
        self.stale.note_unlisted()
        again = survey.stale.keys() & set(begin_again)
        ready = survey.set_up()
        note_refused(ready.refused)
        for table in ready.tables:
            self.tables.register(table, begins_again=table.name in again)
        names = tuple(table.name for table in ready.tables)
        stale = {name: error for name, error in survey.stale.items() if name not in names}
        return SetUp(tables=names, statements=ready.statements, refused={**stale, **ready.refused})

    def begin_stream_again(self) -> SetUp:
        """Gives a stream that cannot be read further a new beginning. Each of the returned tables needs a new snapshot.

        Changes between the registered offset and the new beginning are never read. Run it again if it was killed:
        nothing is registered after the new beginning before the metadata store has that beginning.
        """
        name = self.registered.name
        self.chain.catch_up()
        offset, before = self.registered.next_offset(), self.registered.identity()
        if offset is None or before is None:
            raise SourceError(f"the stream {name} was never read", remedy="run cdc setup-source without --begin-again")
        beginning = self.source.begin_again(offset, before.channel)
        note_refused(beginning.refused)
        self.store.stale_tables.begin_stream_again(
            self.registered.stream_of(beginning.identity),
            position=beginning.offset,
            reason=f"changes of the source from {beginning.gap} were never read; run cdc snapshot on the table",
        )
        log.warning("stream begun again", stream=name, gap=beginning.gap)
        names = tuple(row.name for row in self.store.tables.tables() if row.name not in beginning.refused)
        return SetUp(tables=names, refused=beginning.refused)

    def oldest_version_to_come(self, table: TableName) -> str:
        """Returns the version below which no event of the table is registered from now on, "" if it is not known.

        Events that are replayed from quarantine may be older.
        """
        progress = self.registered.progress()
        if not all(part.offset for part in progress.values()):
            return ""
        return self.source.oldest_version_to_come(table, progress)
