"""Tables that the stream cannot tell any more: noted with the reason, and whether a new snapshot is taken by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from cdc_pipeline.errors import StreamMoved, TableStale
from cdc_pipeline.metadata_store.rows import SourceTable
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.postgres.guards import KnownTable
from cdc_pipeline.sources.postgres.setup import PlannedTable, SourcePlan
from cdc_pipeline.sources.postgres.shape import SourceShape
from cdc_pipeline.sources.postgres.shape_changes import Unchanged, compare_shapes
from cdc_pipeline.sources.postgres.stream import PostgresStream
from cdc_pipeline.steps import step
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()

_UNKNOWN_MARK = ""


def known_tables(pipeline: Pipeline) -> dict[TableName, KnownTable]:
    """The tables of pipeline.yml that were registered before."""
    listed = {table.table for table in pipeline.settings.tables}
    return {row.name: _known(pipeline, row) for row in _stored(pipeline) if row.name in listed}


def _stored(pipeline: Pipeline) -> list[SourceTable]:
    return [row for row in pipeline.store.tables.tables() if row.stream == pipeline.settings.name]


def _known(pipeline: Pipeline, row: SourceTable) -> KnownTable:
    return KnownTable(
        oid=row.source_oid,
        key=tuple(row.settings.get("id", ())),
        publication_mark=_mark_of(row),
        reason=row.parked_reason or "",
        shapes=tuple(map(SourceShape.from_json, row.shape or ())),
        schema=None if row.schema_id is None else pipeline.store.tables.schema(row.table_id, row.schema_id),
    )


def _mark_of(row: SourceTable) -> str | None:
    is_marked = row.publication_mark is not None or row.state is TableState.STALE
    return row.publication_mark if is_marked else _UNKNOWN_MARK


def note_stale(pipeline: Pipeline, plan: SourcePlan, known: Mapping[TableName, KnownTable]) -> None:
    """Every table that cannot be read on is stale from now on."""
    for name, error in plan.stale.items():
        wanted = name in plan.mendable and pipeline.settings.table(name).on_schema_change == "follow"
        row = pipeline.store.tables.table(name)
        if known[name].publication_mark is not None:
            _mark(pipeline, row, error, snapshot_wanted=wanted)
        elif row.snapshot_wanted != wanted:
            pipeline.store.stale_tables.want_snapshot(row.table_id, wanted=wanted)


def note_refused(plan: SourcePlan) -> None:
    """Tables that were never read and cannot be: the others go on without them."""
    for name, error in plan.refused.items():
        log.error("table not read", table=str(name), found=error.found, expected=error.expected, remedy=error.remedy)


def note_unlisted(pipeline: Pipeline) -> None:
    """A table that was taken out of pipeline.yml is not read from here on: put back, it needs a new snapshot."""
    listed = {table.table for table in pipeline.settings.tables}
    for row in _stored(pipeline):
        if row.name not in listed and row.publication_mark is not None:
            error = TableStale(
                f"{row.name} was taken out of pipeline.yml, and its changes are not read since",
                table=row.name,
                remedy=f"list it again and run cdc snapshot {row.name}",
            )
            _mark(pipeline, row, error, snapshot_wanted=False)


def mark_stale(pipeline: Pipeline, tables: Sequence[PlannedTable], error: TableStale) -> None:
    """One of the tables that are being read turned out to be stale: a new snapshot would mend it."""
    (name,) = (table.name for table in tables if str(table.name) == error.table)
    wanted = pipeline.settings.table(name).on_schema_change == "follow"
    _mark(pipeline, pipeline.store.tables.table(name), error, snapshot_wanted=wanted)


def _mark(pipeline: Pipeline, row: SourceTable, error: TableStale, *, snapshot_wanted: bool) -> None:
    words: dict[str, Any] = {"found": error.found, "expected": error.expected, "remedy": error.remedy}
    log.error("table stopped", table=str(row.name), **words, snapshot_follows=snapshot_wanted)
    pipeline.store.stale_tables.mark(row.table_id, str(error), snapshot_wanted=snapshot_wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTables:
    """The tables of a stream as they were when it was opened. `newest`: the last shape of each that was seen since."""

    pipeline: Pipeline
    stream: PostgresStream
    tables: Sequence[PlannedTable]
    marks: Mapping[TableName, str]
    newest: dict[int, SourceShape] = field(default_factory=dict)

    def check(self) -> None:
        """Raises StreamMoved unless the tables are published, registered and made as when the stream was opened."""
        with step(self.pipeline.on_step, "source.check"):
            publication = self.stream.publication()
            shapes = self.stream.shapes([table.oid for table in self.tables])
        published = {} if publication is None else {name: publication.of(name) for name in self.marks}
        now = {name: found.mark for name, found in published.items() if found is not None}
        listed = {table.table for table in self.pipeline.settings.tables}
        registered = {row.name: _mark_of(row) for row in _stored(self.pipeline) if row.name in listed}
        wanted = dict.fromkeys(registered) | dict(self.marks)
        moved = {name for name in wanted if not (now.get(name) == wanted[name] == registered[name])}
        moved |= {table.name for table in self.tables if not self._is_same(table, shapes.get(table.oid))}
        if moved:
            raise StreamMoved(
                f"the source has or publishes {', '.join(sorted(map(str, moved)))} otherwise than when its stream was"
                " opened",
                remedy="open the consumer again: what changed is found then",
            )

    def _is_same(self, table: PlannedTable, now: SourceShape | None) -> bool:
        """Whether its rows are read as before. What does not matter, such as a rewritten file, is only remembered."""
        before = self.newest.get(table.oid, table.shapes[-1])
        if now is None:
            return False
        if now.is_now(before):
            return True
        if [column.type_oid for column in now.columns] != [column.type_oid for column in before.columns]:
            return False
        types = {column.number: column.type for column in before.columns}
        change = compare_shapes(before, now.with_types(types))
        if not isinstance(change, Unchanged):
            return False
        self.newest[table.oid] = change.shape
        documents = [shape.to_json() for shape in (*table.shapes[:-1], change.shape)]
        self.pipeline.store.tables.set_shapes(self.pipeline.store.tables.table(table.name).table_id, documents)
        return True
