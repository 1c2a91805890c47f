"""A real Spark Connect server with Delta for tests."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc_pipeline.launcher.jars import DELTA, S3, jars_of, present_jars, read_lock
from cdc_pipeline.launcher.launch import start
from cdc_pipeline.launcher.log_store import IN_A_FOLDER, ON_S3
from cdc_pipeline.launcher.project import JARS, JARS_LOCK
from cdc_pipeline.launcher.spark import (
    AUTHENTICATION_VARIABLE,
    available_cores,
    s3_settings,
    server_command,
    spark_home,
)
from cdc_pipeline.settings import ObjectStoreSettings
from cdc_pipeline.settings.installation.endpoints import embedded_spark
from cdc_pipeline.settings.installation.ports import free_port
from cdc_pipeline.settings.work import DriverSettings
from tests.support.eventually import await_listener
from tests.support.s3 import REGION

TIMEOUT_SECONDS = 120
INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
"""For tables of a few rows, compiling a plan costs more than running it. Tests of the whole stack compile."""
ONE_COMPILER = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Xms2g -Xmn1200m -XX:MetaspaceSize=256m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Of a driver that lives for minutes: the second compiler costs more than it saves.

With one compiler Java keeps 48 MB of compiled code; Spark has more, and would be compiled again and again.
The bytes of Spark's classes are those of the lock: to verify each of them is a fifth of what the first claims cost.
"""
QUICK_JAVA = f"{ONE_COMPILER} {INTERPRETED}"
QUICK_PROGRAM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""Of a Java program that lives for seconds."""
LOOPBACK = "127.0.0.1"
WITHOUT_LOG_STORE = {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}


@contextmanager
def started_spark(folder: Path, s3_endpoint: str = "", *, java_options: str = QUICK_JAVA) -> Iterator[str]:
    """`sc://…` of a server that listens, with its token; it ends with the block, and also when this process is killed.

    With an S3 server it can write lakes there: as s3a://… by our log store, as s3://… by Delta's own, for one driver.
    """
    port = free_port()
    jars = [*present_jars(JARS, jars_of(read_lock(JARS_LOCK), [DELTA, S3] if s3_endpoint else [DELTA]))]
    jars.append(IN_A_FOLDER.jar(JARS))
    more = dict(IN_A_FOLDER.settings)
    if s3_endpoint:
        server = ObjectStoreSettings(endpoint=s3_endpoint, region=REGION, path_style=True)
        jars.append(ON_S3.jar(JARS))
        more |= s3_settings(server, folder=str(folder)) | ON_S3.settings | WITHOUT_LOG_STORE
    command = server_command(
        spark_home=str(spark_home()),
        jars=[str(jar) for jar in jars],
        cores=available_cores(),
        listen=LOOPBACK,
        port=port,
        folder=str(folder),
        driver=DriverSettings(java_options=java_options),
        more=more,
    )
    environment = {**os.environ, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": LOOPBACK, "TZ": "UTC"}
    token = secrets.token_urlsafe(16)
    environment[AUTHENTICATION_VARIABLE] = token
    log = folder / "spark.log"
    with log.open("wb") as output:
        process = start(list(command), environment=environment, folder=folder, output=output, tied=True)
    try:
        await_listener(process, port, TIMEOUT_SECONDS, log.read_text)
        yield embedded_spark(f"{LOOPBACK}:{port}", token)
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)
