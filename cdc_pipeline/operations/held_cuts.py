"""Cuts the stream at a held position of the source, and finds the lake version that equals the source there."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from threading import Event
from uuid import UUID

import structlog

from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.areas import lake_key
from cdc_pipeline.consume.slice_cutter import CUT_AT
from cdc_pipeline.errors import CdcError
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.protocol import Lake, LakeTable
from cdc_pipeline.lake.schema_change import before_next_shape, shape_at
from cdc_pipeline.lake.shape import Shape
from cdc_pipeline.metadata_store.ledger.records import Boundary
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.record import Column
from cdc_pipeline.sources.copied_rows import HeldPosition
from cdc_pipeline.sources.protocol import Source
from cdc_pipeline.steps import step

log = structlog.get_logger()

POLL = timedelta(milliseconds=200)
_MOST_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCuts:
    """Holds positions of a source and cuts the stream there. `consume_until_idle`: reads it while no consumer runs."""

    stream: str
    store: MetadataStore
    source: Source
    new_id: Callable[[], UUID]
    consume_until_idle: Callable[[], object]

    @contextmanager
    def held(self, timeout: timedelta, *, purpose: str) -> Iterator[tuple[HeldPosition, Boundary]]:
        """Yields a position and its boundary: the stream is cut there, and the source can be copied as of the position
        while the block runs.

        `timeout`: for the cut, at however many positions it is tried. The time in which a position waits for
        transactions of the source does not count.
        """
        left = timeout
        with ExitStack() as holding:
            for _ in range(_MOST_TRIES):
                name = self.new_id().hex[:8]
                held = holding.enter_context(self.source.hold_position(purpose, name=name))
                sent = time.monotonic()
                boundary = self._cut_at(held, left)
                left -= timedelta(seconds=time.monotonic() - sent)
                if boundary is not None:
                    yield held, boundary
                    return
                holding.close()
                log.info("the stream had moved on before it could be cut; taking a later position")
        raise CdcError(
            f"the stream could not be cut at any of {_MOST_TRIES} positions",
            expected="a cut before the consumer closes the slice",
            remedy=f"run {purpose} again; a longer slice_length makes it easier",
        )

    def _cut_at(self, held: HeldPosition, timeout: timedelta) -> Boundary | None:
        """Returns the boundary at the held position; None when the stream is already registered past the position."""
        deadline = time.monotonic() + timeout.total_seconds()
        if not self.source.send_marker(f"{CUT_AT}{held.offset}:{self.new_id()}"):
            self.consume_until_idle()
        while True:
            boundary = self.store.lake_positions.boundary_at(self.stream, held.offset)
            if boundary is not None:
                return boundary
            if (self.store.streams.next_offset(self.stream) or "") > held.offset:
                return None
            if time.monotonic() > deadline:
                raise CdcError(
                    "the consumer did not register the cut",
                    expected="it within the time given",
                    remedy="look at cdc status, then try again",
                )
            Event().wait(POLL.total_seconds())


def begun_history(lake: Lake, table: LakeTable) -> tuple[LakeTable, int] | None:
    """Returns the table's history with its latest version. None if it keeps none, or if the history has not begun."""
    history = history_of(table)
    version = lake.read_version(history) if table.keeps_history else None
    return None if version is None else (history, version)


def shown_version(work: TableWork, table: LakeTable, boundary: Boundary) -> int | None:
    """Returns the last lake version before the first claim after the boundary.

    Returns None while slices up to the boundary are not in the lake: not applied yet, or removed by a rewind that died
    before the metadata store recorded it.

    It need not be the version of a claim: other commits, such as those of maintenance, count too. The commit that gives
    the lake the columns of that first claim does not count, nor does any commit after it: the source did not have those
    columns at the boundary.
    """
    store = work.store
    table_id = store.tables.table(table.name).table_id
    claimed = store.lake_positions.applied_version(table_id, boundary.boundary_id)
    fence = work.lake.read_fence(table)
    if claimed is None or fence is None:
        return claimed
    if fence.number < store.snapshots.fence_at(table_id, boundary.position):
        return None
    following = store.lake_positions.next_change(table_id, boundary.boundary_id)
    if following is None or fence.number < following.number:
        latest = fence.lake_version
    elif following.lake_version is None:
        return claimed
    else:
        latest = following.lake_version - 1
    with step(work.on_step, "lake_schema.read"):
        return before_next_shape(DeltaLog(work.objects, lake_key(table.name)), table.app_id, latest)


def shown_shape(work: TableWork, table: LakeTable, lake_version: int) -> Shape:
    """Returns the source's columns that the lake table has at this version: it may lack a column just registered."""
    with step(work.on_step, "lake_schema.read"):
        return shape_at(DeltaLog(work.objects, lake_key(table.name)), lake_version)


def is_in(shape: Shape, column: Column) -> bool:
    """Returns whether the lake has this column, with the same number and the same name."""
    own = shape.find(column)
    return own is not None and not own.dropped and own.name == column.name
