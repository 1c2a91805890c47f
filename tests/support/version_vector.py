"""The versions of a pipeline's lake tables that equal the source at one boundary."""

from sqlalchemy import text

from cdc_pipeline.metadata_store.store import MetadataStore

_VERSIONS = text("SELECT table_id, lake_version FROM cdc.v_boundary_vector WHERE boundary_id = :boundary_id")


def version_vector(store: MetadataStore, boundary_id: int) -> dict[int, int | None]:
    """Returns the versions by table id; None if no version of the table equals the source there."""
    with store.lake_positions.database.transaction("position.read_vector") as connection:
        rows = connection.execute(_VERSIONS, {"boundary_id": boundary_id}).all()
    return {row.table_id: row.lake_version for row in rows}
