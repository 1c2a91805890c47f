"""Rows of a snapshot that cannot be rows of the lake: quarantined, and withheld from it."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.errors import StaleEpoch
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, as_record, batches
from cdc_pipeline.metadata_store.ledger.quarantine import QuarantineEntry
from cdc_pipeline.metadata_store.ledger.superseded_events import drop_superseded, from_before
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.metadata_store.states import FINISHED_SNAPSHOTS

_EVENT, _SNAPSHOT = models.quarantine, models.snapshot
_PARTITION = 0
"""A row of a snapshot comes from no stream partition; its replay goes into this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRow:
    """A row of a snapshot that does not fit the lake's types. `column`: the first column that does not fit."""

    column: str
    reason: str
    payload: Mapping[str, str | None]


class QuarantinedRows(OfStore):
    def add(self, snapshot: Snapshot, ordinal: int, rows: Sequence[QuarantinedRow]) -> None:
        """Quarantines the rows of one export task. Idempotent, in whatever order the rows are given.

        Raises StaleEpoch when the snapshot has ended: its rows are no longer needed.
        """
        seen: Counter[str] = Counter()
        values = []
        for row in rows:
            # Equal rows of a keyless table are several events, so they are numbered.
            digest = hashlib.sha256(json.dumps(row.payload, sort_keys=True).encode()).hexdigest()
            values.append(columns_of(snapshot) | {"place": f"{ordinal}-{digest}-{seen[digest]}", **asdict(row)})
            seen[digest] += 1
        with self.database.transaction("quarantine.keep") as connection:
            _check_active(connection, snapshot)
            for batch in batches(values):
                connection.execute(insert(_EVENT).on_conflict_do_nothing(), batch)

    def of_snapshot(self, snapshot: Snapshot) -> tuple[QuarantineEntry, ...]:
        """Returns the rows of the snapshot, ordered by id, whatever became of them."""
        query = select(_EVENT).where(_EVENT.c.snapshot_id == snapshot.snapshot_id).order_by(_EVENT.c.quarantine_id)
        with self.database.transaction("quarantine.read") as connection:
            return tuple(as_record(QuarantineEntry, row) for row in connection.execute(query))


def columns_of(snapshot: Snapshot) -> dict[str, Any]:
    """The columns of `cdc.quarantine` that all rows of a snapshot have in common."""
    return {
        "table_id": snapshot.table_id,
        "stream_partition": _PARTITION,
        "version": snapshot.cutoff_version,
        "start_offset": snapshot.cutoff_offset,
        "end_offset": snapshot.cutoff_offset,
        "snapshot_id": snapshot.snapshot_id,
    }


def drop_events_before(connection: Connection, snapshot: Snapshot) -> None:
    """Drops the table's quarantined events from before the cutoff: the published snapshot contains their effect.

    Also drops the rows of earlier snapshots, whatever their version. Events whose version nobody knows stay. A rebuild
    calls this for each publication of the lake, oldest first, when the rows of later snapshots are there already.
    """
    of_another = _EVENT.c.snapshot_id.is_not(None) & (_EVENT.c.snapshot_id != snapshot.snapshot_id)
    if snapshot.lake_version is not None:
        later = _SNAPSHOT.c.lake_version > snapshot.lake_version
        of_later = select(_SNAPSHOT.c.snapshot_id).where(_SNAPSHOT.c.table_id == snapshot.table_id, later)
        of_another &= _EVENT.c.snapshot_id.not_in(of_later)
    which = from_before(snapshot.cutoff_version) | of_another
    drop_superseded(connection, snapshot.table_id, which, snapshot.snapshot_id)


def _check_active(connection: Connection, snapshot: Snapshot) -> None:
    # the table first, as whoever marks it as stale does: another order could cause a deadlock
    of_table = select(models.source_table.c.table_id).where(models.source_table.c.table_id == snapshot.table_id)
    connection.execute(of_table.with_for_update(read=True, key_share=True))
    of_snapshot = models.snapshot.c.snapshot_id == snapshot.snapshot_id
    state = connection.scalar(select(models.snapshot.c.state).where(of_snapshot).with_for_update(key_share=True))
    if state in FINISHED_SNAPSHOTS:
        raise StaleEpoch(
            f"the snapshot {snapshot.snapshot_id} is {state}",
            expected="one that is being taken",
            remedy="drop the task: nothing of it is needed any more",
        )
