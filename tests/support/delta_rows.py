"""A table of the lake read without Spark, which wrote it."""

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import DELETED, OWN_PREFIX
from cdc_pipeline.settings import ObjectStoreSettings


def delta_url(objects: ObjectStore, key: str) -> str:
    """Where deltalake finds the key: a path, or `s3://…`."""
    return objects.spark_url(key).removeprefix("file://").replace("s3a://", "s3://")


def delta_rows(url: str, options: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """All rows with all columns, hidden ones too; `options` tell where S3 is."""
    found = (
        QueryBuilder()
        .register("found", DeltaTable(url, storage_options=options))
        .execute("SELECT * FROM found")
        .read_all()
    )
    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


def storage_options(server: ObjectStoreSettings) -> dict[str, str] | None:
    """None: a lake in a folder."""
    if server.endpoint is None:
        return None
    return {"AWS_ENDPOINT_URL": server.endpoint, "AWS_REGION": server.region or "", "AWS_ALLOW_HTTP": "true"}


def seen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a reader sees."""
    return [
        {name: value for name, value in row.items() if not name.startswith(OWN_PREFIX)}
        for row in rows
        if not row.get(DELETED)
    ]
