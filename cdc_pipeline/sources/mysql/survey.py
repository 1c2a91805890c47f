"""Surveys a MariaDB or MySQL source, creates what it lacks, and opens the stream of its log."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cdc_pipeline.errors import SourceError, TableStale
from cdc_pipeline.record import TableName, decode_position, encode_position
from cdc_pipeline.sources.known import FoundTable, StreamIdentity, StreamStart
from cdc_pipeline.sources.mysql.gtid_set import LogPlace
from cdc_pipeline.sources.mysql.server_checks import warn_of_left_out, warn_of_lost_end, warn_of_partial_images
from cdc_pipeline.sources.mysql.session import session
from cdc_pipeline.sources.mysql.setup import MARK, MysqlPlan, execute_plan
from cdc_pipeline.sources.mysql.stream import GTID, MysqlStream
from cdc_pipeline.steps import step

if TYPE_CHECKING:
    from cdc_pipeline.sources.mysql.source import MysqlServer

_NO_ID = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlSurvey:
    """Implements `SourceSurvey`. `stale` and `mendable`: as found before any stale table was treated as a new one."""

    source: "MysqlServer"
    plan: MysqlPlan
    stale: Mapping[TableName, TableStale]
    mendable: Collection[TableName]
    is_successor: bool = False

    @property
    def identity(self) -> StreamIdentity:
        return StreamIdentity(system=self.plan.server.identity, timeline=0, channel=self.source.markers.sql)

    @property
    def stream_partitions(self) -> Collection[int]:
        return range(self.source.settings.stream_partitions)

    @property
    def first_offset(self) -> str:
        """The position behind the log as it was when the stream was set up."""
        begun = self.plan.server.dialect.place(self.plan.begun or "")
        return encode_position(1 if begun is None else begun.end)

    @property
    def tables(self) -> tuple[FoundTable, ...]:
        return tuple(
            FoundTable(
                name=table.name,
                source_id=_NO_ID,
                key=table.key,
                schema=table.schema,
                published_as=MARK,
                description=tuple(shape.to_json() for shape in table.shapes),
                is_changing=len(table.shapes) > 1,
                before=table.before,
            )
            for table in self.plan.tables
        )

    @property
    def refused(self) -> Mapping[TableName, SourceError]:
        return self.plan.refused

    @property
    def resting(self) -> Mapping[int, SourceError]:
        return {}

    @property
    def statements(self) -> tuple[str, ...]:
        return self.plan.statements

    def set_up(self) -> "MysqlSurvey":
        """Creates the table of marker messages and the pipeline's row in it. Durable on return, idempotent."""
        with session(self.source.address) as connection:
            with step(self.source.on_step, "source.set_up"):
                execute_plan(connection, self.plan.statements)
            begun = self.source.markers.begun(connection)
        warn_of_partial_images(self.plan.server)
        warn_of_lost_end(self.plan.server)
        for table in self.plan.tables:
            if table.shapes[-1].left_out:
                warn_of_left_out(table.name, table.shapes[-1].left_out)
        return replace(self, plan=replace(self.plan, begun=begun))

    def check_ready(self) -> None:
        if self.plan.begun is None:
            raise SourceError(
                f"the table {self.source.markers.sql} on the source has no row of {self.source.markers.pipeline}",
                expected="the row through which marker messages are sent",
                remedy="run cdc setup-source",
            )

    def open(self, start: StreamStart) -> MysqlStream:
        """Opens the log for the registered tables. Raises SourceGap if the server no longer has the first change."""
        position = decode_position(min(place.offset for place in start.progress.values()))
        before = self._last_before(position, start)
        noted = [place.last_position for place in start.progress.values()]
        # At the place where the stream began, something noted is from before: the log may be another one since.
        return MysqlStream(
            self.source,
            plan=self.plan,
            tables=[table for table in self.plan.tables if table.name in start.tables],
            start=before,
            noted=next((place for place in noted if place.get(GTID) == str(before) != self.plan.begun), {}),
            position=position,
        )

    def _last_before(self, position: int, start: StreamStart) -> LogPlace:
        """Returns the last known place that is not behind the position: as it was registered, or as set-up found it.

        Without both, it is found from the present end of the log. Raises SourceError if that does not show it.
        """
        server = self.plan.server
        noted = (place.last_position.get(GTID) for place in start.progress.values())
        known = [server.dialect.place(text) for text in (*noted, self.plan.begun) if text]
        fitting = [place for place in known if place is not None and place.end <= position]
        found = max(fitting, key=lambda place: place.end, default=None) or server.place.at(position)
        if found is None:
            raise SourceError(
                f"it is not registered which transactions come before the number {position}",
                expected="the set of transactions that was noted with each cut",
                remedy="run cdc setup-source --begin-again, then cdc snapshot",
            )
        return found
