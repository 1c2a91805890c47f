"""What nobody needs any more: how far each table's slices may go, and rows that are deleted batch by batch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, text, update

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.leases import Lease, hold_lease
from cdc_pipeline.metadata_store.ledger.cut import BEGINNING, chain_position_behind
from cdc_pipeline.metadata_store.ledger.records import Boundary
from cdc_pipeline.metadata_store.operations.old_rows import DELETE, OLD_ROWS

_TABLE, _BOUNDARY = models.source_table, models.boundary
_FORGETTABLE = text("""
    SELECT greatest(t.forgotten_through, least(
        :fence,
        coalesce(
            (SELECT s.number FROM cdc.slice AS s
             WHERE s.table_id = t.table_id AND s.number > t.forgotten_through
               AND (s.state = 'registered' OR coalesce(s.applied_at, s.registered_at) >= :before)
             ORDER BY s.number LIMIT 1),
            t.next_slice_number) - 1,
        -- what lies behind the cutoff of a snapshot in progress is applied again when it is published
        (SELECT coalesce(min(s.number), t.next_slice_number) - 1
         FROM cdc.snapshot AS n
         LEFT JOIN cdc.slice AS s ON s.table_id = n.table_id AND s.end_offset > n.cutoff_offset
         WHERE n.table_id = t.table_id AND n.state NOT IN ('published', 'failed', 'abandoned')
         GROUP BY n.snapshot_id)))
    FROM cdc.source_table AS t WHERE t.table_id = :table_id
    """)
_FILES = text("""
    SELECT number, path, size_bytes, coalesce(applied_at, registered_at) AS since FROM cdc.slice
    WHERE table_id = :table_id AND path IS NOT NULL AND number > :after AND number <= :through
    ORDER BY number LIMIT :batch
    """)
_FIRST_KEPT = """
    SELECT t.table_id, first.boundary_id, first.registered_at
    FROM cdc.source_table AS t
    CROSS JOIN LATERAL (
        SELECT s.boundary_id, s.registered_at FROM cdc.slice AS s
        WHERE s.table_id = t.table_id
          AND s.number > coalesce(CAST(CAST(:through AS jsonb) ->> CAST(t.table_id AS text) AS bigint), 0)
        ORDER BY s.number LIMIT 1
    ) AS first
    WHERE t.stream = :stream
    """
_BASE = text(f"""
    WITH kept AS ({_FIRST_KEPT})
    SELECT b.* FROM cdc.boundary AS b
    WHERE b.stream = :stream AND b.registered_at < :before
      AND b.boundary_id < ALL (SELECT boundary_id FROM kept)
      AND b.position < (SELECT max(l.position) FROM cdc.boundary AS l WHERE l.stream = :stream)
    ORDER BY b.position DESC LIMIT 1
    """)
_HOLDING = text(f"""
    WITH kept AS ({_FIRST_KEPT})
    SELECT table_id FROM kept WHERE registered_at < :before ORDER BY boundary_id, table_id
    """)
_KEPT_SLICES = text("""
    SELECT s.table_id, max(s.number) AS number
    FROM cdc.slice AS s JOIN cdc.source_table AS t USING (table_id)
    WHERE t.stream = :stream AND s.boundary_id <= :boundary_id AND s.path IS NOT NULL GROUP BY s.table_id
    UNION
    SELECT truncating.table_id, truncating.number
    FROM (SELECT DISTINCT ON (s.table_id) s.table_id, s.number
          FROM cdc.slice AS s JOIN cdc.source_table AS t USING (table_id)
          WHERE t.stream = :stream AND s.boundary_id <= :boundary_id AND s.truncated_at IS NOT NULL
          ORDER BY s.table_id, s.truncated_at DESC, s.number DESC) AS truncating
    UNION
    SELECT s.table_id, s.number
    FROM cdc.slice AS s
    JOIN jsonb_to_recordset(CAST(:fenced AS jsonb)) AS f (table_id integer, number bigint)
        ON (f.table_id, f.number) = (s.table_id, s.number)
    WHERE s.boundary_id <= :boundary_id
    """)
_KEPT_POSITIONS = text("SELECT position FROM cdc.v_lake_position WHERE stream = :stream AND position IS NOT NULL")


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFile:
    """The file of a slice that is needed no more. `since` when: applied, or registered where it never was."""

    number: int
    path: str
    size_bytes: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Rows of cuts up to `base` that stay although their cuts are forgotten: (table, slice number), and boundaries."""

    base: Boundary
    slices: tuple[tuple[int, int], ...]
    positions: tuple[str, ...]

    def parameters(self) -> dict[str, Any]:
        """As the statements on old rows take them."""
        slices = [{"table_id": table_id, "number": number} for table_id, number in self.slices]
        return {
            "boundary_id": self.base.boundary_id,
            "position": self.base.position,
            "kept": json.dumps(slices),
            "positions": list(self.positions),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OldRows:
    """Rows of one kind: how many, about how many bytes they take, and since when the oldest is needed no more."""

    kind: str
    rows: int
    bytes: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Of one stream. `through`: table -> the number up to which its slices are forgotten."""

    database: Database
    stream: str

    def forgettable(self, table_id: int, *, fence: int, before: datetime) -> int:
        """Slices up to this number are in the lake by its own `fence`, and were applied before `before`."""
        parameters = {"table_id": table_id, "fence": fence, "before": before}
        with self.database.transaction("retention.read") as connection:
            return int(connection.execute(_FORGETTABLE, parameters).scalar_one())

    def forget(self, lease: Lease, through: int) -> None:
        """No rewind goes back to before `through` any more. Durable before any file is deleted; only rises."""
        with self.database.transaction("retention.forget") as connection:
            hold_lease(connection, lease)
            risen = func.greatest(_TABLE.c.forgotten_through, through)
            of_table = _TABLE.c.table_id == lease.table_id
            connection.execute(update(_TABLE).where(of_table).values(forgotten_through=risen))

    def old_files(self, table_id: int, *, after: int, through: int, batch: int) -> tuple[OldFile, ...]:
        """By number, so many at a time."""
        parameters = {"table_id": table_id, "after": after, "through": through, "batch": batch}
        with self.database.transaction("retention.read") as connection:
            return tuple(OldFile(**row._asdict()) for row in connection.execute(_FILES, parameters))

    def named(self, table_id: int, paths: Sequence[str]) -> frozenset[str]:
        """Those that a slice of the table names."""
        slices = models.slice_table.c
        query = select(slices.path).where(slices.table_id == table_id, slices.path.in_(paths))
        with self.database.transaction("retention.read") as connection:
            return frozenset(path for path in connection.scalars(query) if path is not None)

    def mark_cleaned(self, table_id: int, through: int) -> None:
        """The files up to this number are deleted."""
        with self.database.transaction("retention.mark_cleaned") as connection:
            risen = func.greatest(_TABLE.c.cleaned_through, through)
            connection.execute(update(_TABLE).where(_TABLE.c.table_id == table_id).values(cleaned_through=risen))

    def base(self, through: Mapping[int, int], before: datetime) -> Boundary | None:
        """The last boundary, but not the stream's last, that is as old and behind which alone slices are needed."""
        with self.database.transaction("retention.read") as connection:
            row = connection.execute(_BASE, self._of_tables(through, before)).one_or_none()
        return None if row is None else Boundary(**row._asdict())

    def holding(self, through: Mapping[int, int], before: datetime) -> tuple[int, ...]:
        """Tables that still need slices which are as old: they keep the cut files of the stream."""
        with self.database.transaction("retention.read") as connection:
            return tuple(connection.scalars(_HOLDING, self._of_tables(through, before)).all())

    def decided_at(self, base: Boundary) -> str:
        """The place at which the cut of `base` was decided."""
        before = select(_BOUNDARY).where(_BOUNDARY.c.stream == self.stream, _BOUNDARY.c.position < base.position)
        with self.database.transaction("retention.read") as connection:
            row = connection.execute(before.order_by(_BOUNDARY.c.position.desc()).limit(1)).one_or_none()
        return BEGINNING if row is None else chain_position_behind(row.position, row.late_slices)

    def keep(self, base: Boundary, fenced: Mapping[int, tuple[int, ...]]) -> Keep:
        """What later cuts, fences, comparisons and freshness still look at. `fenced`: by table, what its fence names.

        The newest slice of each table with a file, the newest truncate, and the boundary that each table's lake equals.
        """
        pairs = [{"table_id": table_id, "number": number} for table_id in fenced for number in fenced[table_id]]
        parameters = {"stream": self.stream, "boundary_id": base.boundary_id, "fenced": json.dumps(pairs)}
        with self.database.transaction("retention.read") as connection:
            slices = connection.execute(_KEPT_SLICES, parameters).all()
            positions = connection.scalars(_KEPT_POSITIONS, {"stream": self.stream}).all()
        return Keep(base=base, slices=tuple((row.table_id, row.number) for row in slices), positions=tuple(positions))

    def count(self, kind: str, parameters: Mapping[str, Any]) -> OldRows:
        """What `delete` would delete."""
        found = text(
            f"SELECT count(*) AS rows, coalesce(sum(bytes), 0)::bigint AS bytes, min(since) AS oldest"
            f" FROM ({OLD_ROWS[kind]}) AS old"
        )
        with self.database.transaction("retention.read") as connection:
            row = connection.execute(found, self._named(parameters)).one()
        return OldRows(kind=kind, **row._asdict())

    def delete(self, kind: str, parameters: Mapping[str, Any]) -> int:
        """One batch, in a transaction of its own. Returns how many rows: none is left once it is zero."""
        with self.database.transaction("retention.delete_rows") as connection:
            return connection.execute(text(DELETE[kind]), self._named(parameters)).rowcount

    def _of_tables(self, through: Mapping[int, int], before: datetime) -> dict[str, Any]:
        return {"stream": self.stream, "through": json.dumps(through), "before": before}

    def _named(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {"stream": self.stream, **parameters}
