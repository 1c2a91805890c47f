"""Opens a consumer at the registered offsets. Creates nothing on the source, and registers no stream and no table."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from cdc_pipeline.consume.consumer import Consumer
from cdc_pipeline.consume.cut_chain import CutChain
from cdc_pipeline.consume.event_filter import EventFilter
from cdc_pipeline.consume.slice_cutter import SliceCutter
from cdc_pipeline.errors import SourceChanged, SourceError, StreamMoved, TableStale
from cdc_pipeline.metadata_store.ledger.records import Assignment, Boundary
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.operations.source_setup.log_watch import LogWatch, SourceLog
from cdc_pipeline.operations.source_setup.registered import RegisteredStream
from cdc_pipeline.operations.source_setup.stale_tables import StaleMarks, note_refused
from cdc_pipeline.operations.source_setup.tables import TableRegistration
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.known import KnownTable, LastCut, PartitionProgress, StreamStart
from cdc_pipeline.sources.protocol import ChangeStream, Source, SourceSurvey
from cdc_pipeline.steps import OnStep
from cdc_pipeline.time_slice import EPOCH

log = structlog.get_logger()

_SET_UP = "run cdc setup-source"
_CLOCKS_APART = timedelta(hours=1)
"""How far the clock of whoever writes events may be ahead of this machine's, before it counts as wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOpening:
    """Opens consumers of a stream."""

    owner: str
    slice_length: timedelta
    slice_rows: int
    registered: RegisteredStream
    source: Source
    store: MetadataStore
    objects: ObjectStore
    chain: CutChain
    tables: TableRegistration
    stale: StaleMarks
    source_log: SourceLog
    clock: Callable[[], datetime]
    on_step: OnStep

    @contextmanager
    def opened(
        self, take: Callable[[str], Assignment] | None = None, without: Collection[int] = ()
    ) -> Iterator[Consumer]:
        """Takes every stream partition and opens a consumer. The previous owner gets StaleEpoch when it next registers.

        `take`: takes a part of the stream partitions instead, given the offset of one that was never read.
        `without`: stream partitions that are not read.
        Registered tables whose changes are incomplete become stale. Changed columns of the others are recorded. Raises
        SourceError if `cdc setup-source` has to be run first. Raises StreamMoved if a table turns out to be stale while
        it is read, before any of its incomplete changes is registered.
        """
        survey = self._ready_survey()
        assignment = _without((take or self._take_stream)(survey.first_offset), {*without, *survey.resting})
        self._note_resting(survey)
        with closing(survey.open(self._start(assignment))) as stream:
            try:
                yield self._consumer(survey, assignment, stream)
            except TableStale as error:
                self.stale.mark(error)
                raise StreamMoved(
                    error.found, remedy="open the consumer again: it reads on without that table"
                ) from error

    def _take_stream(self, first_offset: str) -> Assignment:
        return self.store.streams.take_stream(self.registered.name, owner=self.owner, first_offset=first_offset)

    def _note_resting(self, survey: SourceSurvey) -> None:
        """Stores why stream partitions are not read as their alarm: the first cut that has them again clears it."""
        for number, error in survey.resting.items():
            log.error("stream partition not read", found=error.found, remedy=error.remedy)
            alarm = f"{type(error).__name__}: {error}"
            self.store.streams.raise_alarm(self.registered.name, alarm, stream_partition=number)

    def _ready_survey(self) -> SourceSurvey:
        """Surveys the source for the registered tables, records what changed, and returns the survey.

        Raises SourceError if `cdc setup-source` has to be run first.
        """
        self.chain.catch_up()
        tables = self.registered.tables()
        if self.registered.identity() is None:
            raise SourceError(f"the stream {self.registered.name} is not registered", remedy=_SET_UP)
        survey = self.source.survey(self.registered)
        self._check_stream(survey)
        survey.check_ready()
        self._note_unregistered(survey, tables)
        self.stale.note_stale(survey, tables)
        self.stale.note_unlisted()
        note_refused(survey.refused)
        for table in survey.tables:
            if table.name in tables:
                self.tables.follow(table)
        return survey

    def _check_stream(self, survey: SourceSurvey) -> None:
        """Raises SourceChanged if the source is another one, or if a stream partition is gone or new.

        Raises StreamMoved if another consumer registered new ones since the survey began.
        """
        name = self.registered.name
        registered = self.store.streams.stream_partitions(name)
        new = set(survey.stream_partitions) - set(registered)
        capabilities = self.source.capabilities
        if new and not (capabilities.copies_tables or capabilities.follows_partitions):
            raise SourceChanged(
                f"the stream partition {min(new)} of the stream {name} is new",
                expected=f"the stream partitions {sorted(registered)}, which are registered",
                remedy=_SET_UP,
            )
        # Stream and partitions are registered already, so this call only compares them and creates nothing, except for
        # new stream partitions that the source lets a consumer follow. A database gets none: its rows are dealt to a
        # fixed number.
        self.registered.register(survey, capabilities)

    def _note_unregistered(self, survey: SourceSurvey, tables: Mapping[TableName, KnownTable]) -> None:
        """Logs the tables that pipeline.yml lists and that are not registered; they are not read.

        Raises SourceError if the consumer would pass over their events and no snapshot could bring them later.
        """
        missing = [str(table.name) for table in survey.tables if table.name not in tables]
        capabilities = self.source.capabilities
        if missing and not (capabilities.copies_tables or capabilities.follows_partitions):
            raise SourceError(
                f"{', '.join(missing)} is not registered",
                expected="every table of pipeline.yml, since events that are passed over do not come again",
                remedy=_SET_UP,
            )
        for name in missing:
            log.warning("table not read", table=name, found="it is not registered", remedy=_SET_UP)

    def _start(self, assignment: Assignment) -> StreamStart:
        """Returns where to continue reading. Call it after `take_stream`: only then can nobody else register a cut."""
        files = self.store.source_files
        boundary = self.store.lake_positions.last_boundary(assignment.stream)
        return StreamStart(
            progress={
                number: PartitionProgress(offset=offset, last_position=assignment.last_position.get(number, {}))
                for number, offset in assignment.next_offset.items()
            },
            last_cut=None if boundary is None else LastCut(position=boundary.position, requested=boundary.requested),
            commit_time=_last_time(assignment, boundary),
            tables=self.registered.tables(),
            begun=files.begun_files(assignment.stream),
            begin_file=partial(files.begin_file, assignment),
        )

    def _consumer(self, survey: SourceSurvey, assignment: Assignment, stream: ChangeStream) -> Consumer:
        ids = self.registered.table_ids()
        settings = {name: self.tables.table_settings(name) for name in ids}
        changing = {
            table.name: table.schema.without(settings[table.name].exclude_columns)
            for table in survey.tables
            if table.is_changing and table.schema is not None and table.name in ids
        }
        return Consumer(
            assignment=assignment,
            stream=stream,
            cutter=SliceCutter(
                start=stream.position,
                commit_time=assignment.label.start if assignment.label else self.clock(),
                slice_length=self.slice_length,
                slice_rows=self.slice_rows,
                last_label=assignment.label,
                cut_at=sorted({schema.generation for schema in changing.values()}),
            ),
            table_ids=ids,
            object_store=self.objects,
            store=self.store,
            chain=self.chain,
            clock=self.clock,
            on_step=self.on_step,
            event_filter=EventFilter(
                tables=settings, latest=None if self.source.capabilities.copies_tables else self._latest_time
            ),
            check_tables=partial(self._check_tables, stream, LogWatch(source_log=self.source_log), frozenset(ids)),
            changing=changing,
        )

    def _latest_time(self) -> datetime:
        return self.clock() + _CLOCKS_APART

    def _check_tables(self, stream: ChangeStream, watch: LogWatch, opened: frozenset[TableName]) -> None:
        """Records new table descriptions and observes the source's log. Called before a cut is registered.

        Raises StreamMoved if a table changed or was registered since the stream was `opened` with its tables; then the
        cut must not be registered.
        """
        tables = self.registered.published()
        new = sorted(map(str, tables.keys() - opened))
        if new:
            raise StreamMoved(f"{', '.join(new)} was registered meanwhile", remedy="it is read from now on")
        changed = stream.check(tables)
        for name, description in changed.items():
            row = self.store.tables.table(name)
            # A change that ended since the opening has no earlier shapes any more, so only the newest one is replaced.
            self.store.tables.set_shapes(row.table_id, [*(row.shape or ())[:-1], description[-1]])
        watch.look()


def _without(assignment: Assignment, left_out: Collection[int]) -> Assignment:
    """Returns the assignment without stream partitions that are not read: no cut has them, so their times stay."""
    kept = {number: offset for number, offset in assignment.next_offset.items() if number not in left_out}
    return replace(assignment, next_offset=kept)


def _last_time(assignment: Assignment, boundary: Boundary | None) -> datetime:
    """Returns the time of cuts before the first event: that of what was read last, if need be by other consumers."""
    if assignment.label is not None:
        return assignment.label.start
    return EPOCH if boundary is None else boundary.label_start
