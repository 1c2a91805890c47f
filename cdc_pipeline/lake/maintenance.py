"""Maintenance of a lake table: merge small files, write checkpoints, remove tombstones, delete unused files."""

from datetime import timedelta

import structlog
from pyspark.sql import SparkSession

from cdc_pipeline.errors import LakeError, UsageError
from cdc_pipeline.lake.lake_rows_sql import DELETION, HIDDEN
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import table_at, text_literal
from cdc_pipeline.lake.reshaping import configuration_of
from cdc_pipeline.lake.session import configured, spark_calls
from cdc_pipeline.lake.table_state import LakeTableState
from cdc_pipeline.record import STATE, VERSION
from cdc_pipeline.steps import OnStep, step

logger = structlog.get_logger()

SHORTEST_RETENTION = timedelta(days=7)
_HOUR = timedelta(hours=1)
_CHECKPOINT_INTERVAL = 10
"""Delta's default, in versions."""
_TRANSACTION = "spark.databricks.delta.write.txnVersion"
_CHECKPOINT_CONFS = {
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    "spark.databricks.delta.write.txnAppId": "cdc/checkpoint",
}
"""The empty commit has an application id of its own. So it cannot move a fence that is still in the session's confs."""


def optimize(session: SparkSession, url: str) -> None:
    """Merges small files.

    Files of at least 16 MiB stay as they are (session confs `optimize.minFileSize`, `maxFileSize`).
    """
    session.sql(f"OPTIMIZE {table_at(url)}").collect()


def checkpoint_when_due(session: SparkSession, url: str, state: LakeTableState, on_step: OnStep) -> None:
    """Makes Spark write a checkpoint if the version after `state` is due for one. Old commits may be cleaned after it.

    Spark writes a checkpoint only with a commit of its own, so this commits without rows. The claim's commit is already
    durable, so a failure is only logged; the next version that is due tries again.
    """
    interval = int(configuration_of(state.metadata).get("delta.checkpointInterval", _CHECKPOINT_INTERVAL))
    if (state.version + 1) % interval:
        return
    try:
        with (
            spark_calls("writing a checkpoint"),
            configured(session, _CHECKPOINT_CONFS | {_TRANSACTION: str(state.version + 1)}),
            step(on_step, "lake_log.checkpoint"),
        ):
            session.sql(f"INSERT INTO {table_at(url)} SELECT * FROM {table_at(url)} WHERE false").collect()
    except LakeError as error:
        logger.warning("no checkpoint was written", lake=url, found=error.found)


def purge(session: SparkSession, table: LakeTable, url: str, below_version: str) -> None:
    """Removes tombstones with a lower version. Incomplete rows stay, because they are not deleted.

    There is no commit if there is nothing to remove.
    """
    columns = session.read.format("delta").load(url).columns
    if table.deletes == "soft" or STATE not in columns:
        return
    dead = f"{DELETION} >= {VERSION}" if table.schema.key else "true"
    older = f"{VERSION} < {text_literal(below_version)}"
    session.sql(f"DELETE FROM {table_at(url)} WHERE {HIDDEN} AND {dead} AND {older}").collect()


def vacuum(session: SparkSession, url: str, retention: timedelta) -> None:
    """Deletes files that no version younger than `retention` refers to.

    Raises UsageError below seven days, because a paused worker or reader may still use an older version.
    """
    if retention < SHORTEST_RETENTION:
        raise UsageError(
            f"files unused for {retention} are to be deleted",
            expected=f"a retention of at least {SHORTEST_RETENTION}",
            remedy="a shorter one could take files from a reader or a paused worker",
        )
    hours = -(-retention // _HOUR)
    session.sql(f"VACUUM {table_at(url)} RETAIN {hours} HOURS").collect()
