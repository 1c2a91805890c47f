"""The embedded Spark Connect server: one driver with Delta, in UTC, alone or with the executors of a cluster."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cdc_pipeline.settings import ObjectStoreSettings
from cdc_pipeline.settings.work import DriverSettings

DEFAULT_REGION = "us-east-1"
CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
AUTHENTICATION_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""The server requires this token. As an argument it would be visible to every user of the machine."""
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.buffer.pageSize": "1m",
    "spark.sql.files.openCostInBytes": "1m",
    "spark.sql.codegen.cache.maxEntries": "5000",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.commit.idempotencyCheck.enabled": "true",
    "spark.log.level": "WARN",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Few partitions and no adaptive planning: slices are small, so the time depends on the number of jobs.

One MERGE generates more than a hundred classes. Spark's default cache of 100 would compile all of them for every claim.
Each sort and each aggregate of a task allocates a page of memory first, 64 MB in a large driver. With 1 MB a claim of
few rows takes a tenth less time; a larger record gets a page of its own.

Spark deals files out to tasks by their size plus a price for opening one. At its default of 4 MB fifteen small files
weigh as much as a table of ten million well compressed rows: one task got all large files, and a scan took 2.1 s
instead of 1.3.
"""


CREDENTIALS = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
"""Finds credentials like AWS's own tools: environment, profile, the machine's role."""


def local_folder(folder: str) -> str:
    """Returns the folder of what a driver spills, shuffles and uploads: none of it outlives the driver."""
    return f"{folder}/local"


def s3_settings(server: ObjectStoreSettings, *, folder: str | None) -> dict[str, str]:
    """`folder`: for files that are being uploaded. Without it each executor uses its machine's temporary folder."""
    settings = {"spark.hadoop.fs.s3a.aws.credentials.provider": CREDENTIALS}
    if folder is not None:
        settings["spark.hadoop.fs.s3a.buffer.dir"] = local_folder(folder)
    if server.endpoint is not None:
        settings["spark.hadoop.fs.s3a.endpoint"] = server.endpoint
        settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(server.endpoint.startswith("https")).lower()
    if server.endpoint is not None or server.region is not None:
        settings["spark.hadoop.fs.s3a.endpoint.region"] = server.region or DEFAULT_REGION
    if server.path_style:
        settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
    return settings


def server_command(
    *,
    spark_home: str,
    jars: Sequence[str],
    cores: int,
    listen: str,
    port: int,
    folder: str,
    driver: DriverSettings,
    more: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """`folder`: for what the driver spills, and its warehouse. `more`: further settings, such as those for S3.

    `listen`: address of the Connect port. All other ports stay on loopback, unless `driver` names a host for executors.
    """
    settings = SETTINGS | {
        "spark.sql.shuffle.partitions": str(cores),
        "spark.connect.grpc.binding.address": listen,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": driver.host,
        "spark.driver.host": driver.host,
        "spark.local.dir": local_folder(folder),
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        **(more or {}),
        **driver.spark,
    }
    return (
        *(f"{spark_home}/bin/spark-submit", "--class", CONNECT_SERVER, "--master", driver.master),
        *(
            "--driver-memory",
            driver.memory,
            "--driver-java-options",
            f"-Duser.timezone=UTC {driver.java_options}".strip(),
            "--jars",
            ",".join(jars),
        ),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
    )


def spark_home() -> Path:
    """The folder of the pyspark package. pyspark is not imported for this."""
    found = importlib.util.find_spec("pyspark")
    return Path((found and found.origin) or ".").parent


def available_cores() -> int:
    return len(os.sched_getaffinity(0))
