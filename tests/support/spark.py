"""A real Spark Connect server with Delta for tests."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc_pipeline.stack.jars import DELTA, jars_of, present_jars, read_lock
from cdc_pipeline.stack.launch import start
from cdc_pipeline.stack.ports import free_port, is_listening
from cdc_pipeline.stack.project import JARS, JARS_LOCK
from cdc_pipeline.stack.spark import available_cores, server_command, spark_home

PATIENCE_SECONDS = 120
QUICK_TO_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
"""For tables of a few rows, compiling a plan costs more than running it. Tests of the whole stack compile."""
LOOPBACK = "127.0.0.1"


@contextmanager
def started_spark(folder: Path) -> Iterator[str]:
    """`sc://…` of a server that listens; it ends with the block, and also when this process is killed."""
    port = free_port()
    command = server_command(
        spark_home=str(spark_home()),
        jars=[str(jar) for jar in present_jars(JARS, jars_of(read_lock(JARS_LOCK), [DELTA]))],
        cores=available_cores(),
        listen=LOOPBACK,
        port=port,
        folder=str(folder),
        java_options=f"{QUICK_TO_START} {INTERPRETED}",
    )
    environment = {**os.environ, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": LOOPBACK, "TZ": "UTC"}
    log = folder / "spark.log"
    with log.open("wb") as output:
        process = start(list(command), environment=environment, folder=folder, output=output, tied=True)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_listening(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield f"sc://{LOOPBACK}:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
