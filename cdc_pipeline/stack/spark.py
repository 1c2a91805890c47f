"""The embedded Spark Connect server: one local driver with Delta, on loopback, in UTC."""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkServer:
    """`folder` takes what the driver spills and its warehouse; `jars` are those of the lock."""

    folder: Path
    port: int
    jars: tuple[Path, ...]
    cores: int
    memory: str = "2g"
    address: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"sc://{self.address}:{self.port}"

    def command(self) -> list[str]:
        settings = [
            word
            for name, value in (self._place() | spark_settings(self.cores)).items()
            for word in ("--conf", f"{name}={value}")
        ]
        return [
            *(str(spark_home() / "bin" / "spark-submit"), "--class", CONNECT_SERVER),
            *("--master", "local[*]", "--driver-memory", self.memory, "--driver-java-options", "-Duser.timezone=UTC"),
            *("--jars", ",".join(str(path) for path in self.jars), *settings),
        ]

    def _place(self) -> dict[str, str]:
        return {
            "spark.connect.grpc.binding.address": self.address,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.bindAddress": self.address,
            "spark.driver.host": self.address,
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }


def spark_settings(cores: int) -> dict[str, str]:
    """Small partitions and no adaptive planning: a slice is small, and what costs is the number of jobs."""
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.databricks.delta.commit.idempotencyCheck.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def spark_home() -> Path:
    """The folder of the pyspark package, found without importing it."""
    found = importlib.util.find_spec("pyspark")
    return Path((found and found.origin) or ".").parent


def spark_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}


def available_cores() -> int:
    return len(os.sched_getaffinity(0))
