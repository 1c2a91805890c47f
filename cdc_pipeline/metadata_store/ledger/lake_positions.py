"""How far the lake has come: the position that a table equals, and the versions that belong together."""

from dataclasses import dataclass

from sqlalchemy import select, text

from cdc_pipeline.errors import UsageError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.ledger.records import Boundary, LakePosition

_LAKE_POSITION = text("""
    SELECT table_id, position, as_of, applied_through, reason FROM cdc.v_lake_position WHERE table_id = :table_id
    """)
_VERSION_VECTOR = text("""
    SELECT table_id, lake_version FROM cdc.v_boundary_vector WHERE boundary_id = :boundary_id ORDER BY table_id
    """)
_APPLIED_VERSION = text("""
    SELECT applied_version FROM cdc.v_boundary_vector WHERE boundary_id = :boundary_id AND table_id = :table_id
    """)
_NEXT_CHANGE = text("""
    SELECT s.number, CASE WHEN s.state = 'applied' THEN c.lake_version END AS lake_version
    FROM cdc.slice AS s
    LEFT JOIN cdc.claim AS c ON c.claim_id = s.claim_id
    WHERE s.table_id = :table_id AND s.path IS NOT NULL AND s.number > coalesce(
        (SELECT r.number FROM cdc.slice AS r WHERE r.table_id = :table_id AND r.boundary_id <= :boundary_id
         ORDER BY r.boundary_id DESC, r.number DESC LIMIT 1), 0)
    ORDER BY s.number
    LIMIT 1
    """)
_BOUNDARY = models.boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class NextChange:
    """The first slice behind a boundary that changes rows of a table; `lake_version`: that of its claim, if applied."""

    number: int
    lake_version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePositions:
    database: Database

    def lake_position(self, table_id: int) -> LakePosition:
        """Costs the same however long the history and the backlog are."""
        with self.database.transaction("position.read") as connection:
            row = connection.execute(_LAKE_POSITION, {"table_id": table_id}).one_or_none()
        if row is None:
            raise UsageError(
                f"there is no table number {table_id} in the metadata store",
                remedy="run cdc setup-source: it registers the tables of pipeline.yml",
            )
        return LakePosition(**row._asdict())

    def version_vector(self, boundary_id: int) -> dict[int, int | None]:
        """Table -> the lake version that equals the source at the boundary; None where no version does."""
        with self.database.transaction("position.read_vector") as connection:
            rows = connection.execute(_VERSION_VECTOR, {"boundary_id": boundary_id}).all()
        return {row.table_id: row.lake_version for row in rows}

    def applied_version(self, table_id: int, boundary_id: int) -> int | None:
        """The lake version at the boundary: it equals the source there, apart from withheld rows."""
        with self.database.transaction("position.read_vector") as connection:
            found = connection.scalar(_APPLIED_VERSION, {"boundary_id": boundary_id, "table_id": table_id})
        return None if found is None else int(found)

    def next_change(self, table_id: int, boundary_id: int) -> NextChange | None:
        with self.database.transaction("position.read_next") as connection:
            row = connection.execute(_NEXT_CHANGE, {"table_id": table_id, "boundary_id": boundary_id}).one_or_none()
        return None if row is None else NextChange(**row._asdict())

    def last_boundary(self, stream: str) -> Boundary | None:
        """Everything before it is registered; None for a stream without a cut."""
        query = select(_BOUNDARY).where(_BOUNDARY.c.stream == stream).order_by(_BOUNDARY.c.position.desc()).limit(1)
        with self.database.transaction("position.read_last_boundary") as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else Boundary(**row._asdict())

    def boundary_at(self, stream: str, position: str) -> Boundary | None:
        """The cut that ends exactly there."""
        query = select(_BOUNDARY).where(_BOUNDARY.c.stream == stream, _BOUNDARY.c.position == position)
        with self.database.transaction("position.read_boundary") as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else Boundary(**row._asdict())
