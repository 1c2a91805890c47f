"""Upkeep of a lake table: small files merged, files that no kept version names deleted."""

from datetime import timedelta

from pyspark.sql import SparkSession

from cdc_pipeline.errors import UsageError
from cdc_pipeline.lake.lake_rows_sql import DELETION, HIDDEN
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import table_at, text_literal
from cdc_pipeline.record import STATE, VERSION

SHORTEST_RETENTION = timedelta(days=7)
_HOUR = timedelta(hours=1)


def optimize(session: SparkSession, url: str) -> None:
    """Files of at least 16 MiB stay as they are (session confs `optimize.minFileSize`, `maxFileSize`)."""
    session.sql(f"OPTIMIZE {table_at(url)}").collect()


def purge(session: SparkSession, table: LakeTable, url: str, below_version: str) -> None:
    """Incomplete rows stay: they are alive. Nothing to remove makes no commit."""
    columns = session.read.format("delta").load(url).columns
    if table.deletes == "soft" or STATE not in columns:
        return
    dead = f"{DELETION} >= {VERSION}" if table.schema.key else "true"
    older = f"{VERSION} < {text_literal(below_version)}"
    session.sql(f"DELETE FROM {table_at(url)} WHERE {HIDDEN} AND {dead} AND {older}").collect()


def vacuum(session: SparkSession, url: str, retention: timedelta) -> None:
    """Raises UsageError below seven days: a paused worker or reader may still hold an older version."""
    if retention < SHORTEST_RETENTION:
        raise UsageError(
            f"files unused for {retention} are to be deleted",
            expected=f"a retention of at least {SHORTEST_RETENTION}",
            remedy="a shorter one could take files from a reader or a paused worker",
        )
    hours = -(-retention // _HOUR)
    session.sql(f"VACUUM {table_at(url)} RETAIN {hours} HOURS").collect()
