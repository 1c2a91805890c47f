"""Lake positions: the position as of which a table of the lake equals the source, and the lake version of it."""

from dataclasses import dataclass

from sqlalchemy import Connection, select, text

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, as_optional_record, as_record
from cdc_pipeline.metadata_store.ledger.records import Boundary, LakePosition
from cdc_pipeline.metadata_store.ledger.tables import no_table

_LAKE_POSITION = text("""
    SELECT table_id, position, as_of, applied_through, reason FROM cdc.v_lake_position WHERE table_id = :table_id
    """)
_APPLIED_VERSION = text("""
    SELECT applied_version FROM cdc.v_boundary_vector WHERE boundary_id = :boundary_id AND table_id = :table_id
    """)
_NEXT_CHANGE = text("""
    SELECT slice.number, CASE WHEN slice.state = 'applied' THEN claim.lake_version END AS lake_version
    FROM cdc.slice
    LEFT JOIN cdc.claim ON claim.claim_id = slice.claim_id
    WHERE slice.table_id = :table_id AND slice.number > coalesce(
        (SELECT earlier.number FROM cdc.slice AS earlier
         WHERE earlier.table_id = :table_id AND earlier.boundary_id <= :boundary_id
         ORDER BY earlier.boundary_id DESC, earlier.number DESC LIMIT 1), 0)
    ORDER BY slice.number
    LIMIT 1
    """)
_BOUNDARY = models.boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class NextChange:
    """The first slice of a table after a boundary. `lake_version`: of its claim; None if not applied."""

    number: int
    lake_version: int | None


class LakePositions(OfStore):
    def lake_position(self, table_id: int) -> LakePosition:
        """Returns the position as of which the lake's table equals the source. Raises UsageError for an unknown table.

        The cost does not depend on the length of the history, and for databases not on that of the backlog.
        """
        with self.database.transaction("position.read") as connection:
            row = connection.execute(_LAKE_POSITION, {"table_id": table_id}).one_or_none()
        if row is None:
            raise no_table(f"number {table_id}")
        return as_record(LakePosition, row)

    def applied_version(self, table_id: int, boundary_id: int) -> int | None:
        """Returns the lake version that equals the source at the boundary, except for withheld rows; None if none."""
        with self.database.transaction("position.read_vector") as connection:
            found = connection.scalar(_APPLIED_VERSION, {"boundary_id": boundary_id, "table_id": table_id})
        return None if found is None else int(found)

    def next_change(self, table_id: int, boundary_id: int) -> NextChange | None:
        """Returns the table's first slice after the boundary; None if none is registered."""
        with self.database.transaction("position.read_next") as connection:
            row = connection.execute(_NEXT_CHANGE, {"table_id": table_id, "boundary_id": boundary_id}).one_or_none()
        return as_optional_record(NextChange, row)

    def last_boundary(self, stream: str) -> Boundary | None:
        """Does what the function does, in a transaction of its own."""
        with self.database.transaction("position.read_last_boundary") as connection:
            return last_boundary(connection, stream)

    def boundary_at(self, stream: str, position: str) -> Boundary | None:
        """Returns the boundary of the cut that ends at exactly this position; None if there is none."""
        query = select(_BOUNDARY).where(_BOUNDARY.c.stream == stream, _BOUNDARY.c.position == position)
        with self.database.transaction("position.read_boundary") as connection:
            row = connection.execute(query).one_or_none()
        return as_optional_record(Boundary, row)


def last_boundary(connection: Connection, stream: str) -> Boundary | None:
    """Returns the stream's last boundary: every event before it is registered. None for a stream without a cut."""
    query = select(_BOUNDARY).where(_BOUNDARY.c.stream == stream).order_by(_BOUNDARY.c.position.desc()).limit(1)
    return as_optional_record(Boundary, connection.execute(query).one_or_none())
