"""Retention in the metadata store: up to where slices are forgotten, and which rows are deleted, batch by batch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, text, update

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStream, as_optional_record, as_record
from cdc_pipeline.metadata_store.leases import Lease, hold_lease
from cdc_pipeline.metadata_store.ledger.cut import BEGINNING
from cdc_pipeline.metadata_store.ledger.records import Boundary
from cdc_pipeline.metadata_store.operations.old_rows import DELETE, OLD_ROWS

_TABLE, _BOUNDARY = models.source_table, models.boundary
_FORGETTABLE = text("""
    SELECT greatest(source.forgotten_through, least(
        :fence,
        -- the last slice before the first that waits or was applied too recently
        coalesce(
            (SELECT slice.number FROM cdc.slice
             WHERE slice.table_id = source.table_id AND slice.number > source.forgotten_through
               AND (slice.state = 'registered' OR coalesce(slice.applied_at, slice.registered_at) >= :before)
             ORDER BY slice.number LIMIT 1),
            source.next_slice_number) - 1,
        -- slices behind the cutoff of an active snapshot are applied again when it is published
        (SELECT coalesce(min(slice.number), source.next_slice_number) - 1
         FROM cdc.snapshot AS active
         LEFT JOIN cdc.slice ON slice.table_id = active.table_id AND slice.end_offset > active.cutoff_offset
         WHERE active.table_id = source.table_id AND active.state NOT IN ('published', 'failed', 'abandoned')
         GROUP BY active.snapshot_id)))
    FROM cdc.source_table AS source WHERE source.table_id = :table_id
    """)
_FILES = text("""
    SELECT number, path, size_bytes, coalesce(applied_at, registered_at) AS since FROM cdc.slice
    WHERE table_id = :table_id AND number > :after AND number <= :through
    ORDER BY number LIMIT :batch
    """)
# By table, the first slice that is still needed.
_FIRST_NEEDED = """
    SELECT source.table_id, first.boundary_id, first.registered_at
    FROM cdc.source_table AS source
    CROSS JOIN LATERAL (
        SELECT slice.boundary_id, slice.registered_at FROM cdc.slice
        WHERE slice.table_id = source.table_id
          AND slice.number > coalesce(CAST(CAST(:through AS jsonb) ->> CAST(source.table_id AS text) AS bigint), 0)
        ORDER BY slice.number LIMIT 1
    ) AS first
    WHERE source.stream = :stream
    """
_BASE = text(f"""
    WITH needed AS ({_FIRST_NEEDED})
    SELECT boundary.* FROM cdc.boundary
    WHERE boundary.stream = :stream AND boundary.registered_at < :before
      AND boundary.boundary_id < ALL (SELECT boundary_id FROM needed)
      AND boundary.position < (SELECT max(later.position) FROM cdc.boundary AS later WHERE later.stream = :stream)
    ORDER BY boundary.position DESC LIMIT 1
    """)
_HOLDING = text(f"""
    WITH needed AS ({_FIRST_NEEDED})
    SELECT table_id FROM needed WHERE registered_at < :before ORDER BY boundary_id, table_id
    """)
_KEPT_SLICES = text("""
    SELECT slice.table_id, slice.number
    FROM (SELECT DISTINCT ON (slice.table_id) slice.table_id, slice.number, slice.claim_id
          FROM cdc.slice JOIN cdc.source_table AS source USING (table_id)
          WHERE source.stream = :stream AND slice.boundary_id <= :boundary_id
          ORDER BY slice.table_id, slice.number DESC) AS newest
    JOIN cdc.slice ON slice.table_id = newest.table_id
        AND (slice.number = newest.number OR slice.claim_id = newest.claim_id)
    WHERE slice.boundary_id <= :boundary_id
    UNION
    SELECT truncating.table_id, truncating.number
    FROM (SELECT DISTINCT ON (slice.table_id) slice.table_id, slice.number
          FROM cdc.slice JOIN cdc.source_table AS source USING (table_id)
          WHERE source.stream = :stream AND slice.boundary_id <= :boundary_id AND slice.truncated_at IS NOT NULL
          ORDER BY slice.table_id, slice.truncated_at DESC, slice.number DESC) AS truncating
    UNION
    SELECT slice.table_id, slice.number
    FROM cdc.slice
    JOIN jsonb_to_recordset(CAST(:fenced AS jsonb)) AS fenced (table_id integer, number bigint)
        USING (table_id, number)
    WHERE slice.boundary_id <= :boundary_id
    """)
_KEPT_POSITIONS = text("SELECT position FROM cdc.v_lake_position WHERE stream = :stream AND position IS NOT NULL")


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFile:
    """The file of a slice that is no longer needed.

    `since`: when the slice was applied, or registered if it never was applied.
    """

    number: int
    path: str
    size_bytes: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Rows that stay although their cuts, up to `base`, are forgotten.

    `slices`: pairs of table id and number. `positions`: those of boundaries.
    """

    base: Boundary
    slices: tuple[tuple[int, int], ...]
    positions: tuple[str, ...]

    def parameters(self) -> dict[str, Any]:
        """The parameters of the statements in `old_rows`."""
        slices = [{"table_id": table_id, "number": number} for table_id, number in self.slices]
        return {
            "boundary_id": self.base.boundary_id,
            "position": self.base.position,
            "kept": json.dumps(slices),
            "positions": list(self.positions),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """How much of one kind was deleted, or would be by a run that is not dry. Of rows, `bytes` is an estimate.

    `oldest`: the time since when the oldest item was not needed, if known.
    """

    kind: str
    count: int
    bytes: int
    oldest: datetime | None


class Retention(OfStream):
    """Retention of one stream. `through`: by table id, the number at or below which its slices are forgotten."""

    def forgettable(self, table_id: int, *, fence: int, before: datetime) -> int:
        """Returns the number at or below which the table's slices can be forgotten.

        They are in the lake by its own `fence`, and were applied earlier than `before`.
        """
        parameters = {"table_id": table_id, "fence": fence, "before": before}
        with self.database.transaction("retention.read") as connection:
            return int(connection.execute(_FORGETTABLE, parameters).scalar_one())

    def forget(self, lease: Lease, through: int) -> None:
        """Forgets the slices at or below `through`: no rewind goes back behind them any more.

        Durable on return; call it before any file is deleted. The number never goes back.
        """
        with self.database.transaction("retention.forget") as connection:
            hold_lease(connection, lease)
            risen = func.greatest(_TABLE.c.forgotten_through, through)
            of_table = _TABLE.c.table_id == lease.table_id
            connection.execute(update(_TABLE).where(of_table).values(forgotten_through=risen))

    def old_files(self, table_id: int, *, after: int, through: int, batch: int) -> tuple[OldFile, ...]:
        """Files of slices with numbers in (after, through], by number; at most `batch` of them."""
        parameters = {"table_id": table_id, "after": after, "through": through, "batch": batch}
        with self.database.transaction("retention.read") as connection:
            return tuple(as_record(OldFile, row) for row in connection.execute(_FILES, parameters))

    def named(self, table_id: int, paths: Sequence[str]) -> frozenset[str]:
        """Those of the paths that a slice of the table names."""
        slices = models.slice_table.c
        query = select(slices.path).where(slices.table_id == table_id, slices.path.in_(paths))
        with self.database.transaction("retention.read") as connection:
            return frozenset(connection.scalars(query))

    def mark_cleaned(self, table_id: int, through: int) -> None:
        """Records that the slice files at or below this number are deleted."""
        with self.database.transaction("retention.mark_cleaned") as connection:
            risen = func.greatest(_TABLE.c.cleaned_through, through)
            connection.execute(update(_TABLE).where(_TABLE.c.table_id == table_id).values(cleaned_through=risen))

    def base(self, through: Mapping[int, int], before: datetime) -> Boundary | None:
        """The last boundary that was registered earlier than `before` and behind which all needed slices lie.

        The stream's last boundary is never returned. None if there is none.
        """
        with self.database.transaction("retention.read") as connection:
            row = connection.execute(_BASE, self._of_tables(through, before)).one_or_none()
        return as_optional_record(Boundary, row)

    def holding(self, through: Mapping[int, int], before: datetime) -> tuple[int, ...]:
        """Ids of tables that need a slice registered earlier than `before`: they keep the stream's old cut files."""
        with self.database.transaction("retention.read") as connection:
            return tuple(connection.scalars(_HOLDING, self._of_tables(through, before)).all())

    def decided_at(self, base: Boundary) -> str:
        """The chain position of the cut file that decided the cut of `base`."""
        before = select(_BOUNDARY).where(_BOUNDARY.c.stream == self.stream, _BOUNDARY.c.position < base.position)
        with self.database.transaction("retention.read") as connection:
            row = connection.execute(before.order_by(_BOUNDARY.c.position.desc()).limit(1)).one_or_none()
        return BEGINNING if row is None else as_record(Boundary, row).chain_position

    def keep(self, base: Boundary, fenced: Mapping[int, tuple[int, ...]]) -> Keep:
        """The rows of cuts up to `base` that later cuts, fences, comparisons and lake positions still read.

        These are each table's newest slice and the others of its claim, since a rewind may make the fence name them;
        its newest truncate, the slices that its fence names, and the boundary of its lake position. `fenced`: by table
        id, the numbers of the slices that its fence names.
        """
        pairs = [{"table_id": table_id, "number": number} for table_id in fenced for number in fenced[table_id]]
        parameters = {"stream": self.stream, "boundary_id": base.boundary_id, "fenced": json.dumps(pairs)}
        with self.database.transaction("retention.read") as connection:
            slices = connection.execute(_KEPT_SLICES, parameters).all()
            positions = connection.scalars(_KEPT_POSITIONS, {"stream": self.stream}).all()
        return Keep(base=base, slices=tuple((row.table_id, row.number) for row in slices), positions=tuple(positions))

    def count(self, kind: str, parameters: Mapping[str, Any]) -> Cleaned:
        """Counts the rows that `delete` would delete."""
        found = text(
            f"SELECT count(*) AS count, coalesce(sum(bytes), 0)::bigint AS bytes, min(since) AS oldest"
            f" FROM ({OLD_ROWS[kind]}) AS old"
        )
        with self.database.transaction("retention.read") as connection:
            row = connection.execute(found, self._named(parameters)).one()
        return Cleaned(kind=f"rows of {kind}", **row._asdict())

    def delete(self, kind: str, parameters: Mapping[str, Any]) -> int:
        """Deletes one batch in a transaction of its own. Returns the number of rows: zero when none is left."""
        with self.database.transaction("retention.delete_rows") as connection:
            return connection.execute(text(DELETE[kind]), self._named(parameters)).rowcount

    def _of_tables(self, through: Mapping[int, int], before: datetime) -> dict[str, Any]:
        return {"stream": self.stream, "through": json.dumps(through), "before": before}

    def _named(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {"stream": self.stream, **parameters}
