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
from cdc_pipeline.stack.spark import SparkServer, available_cores, spark_environment

PATIENCE_SECONDS = 120


@contextmanager
def started_spark(folder: Path) -> Iterator[SparkServer]:
    """Started and listening; ends with the block, and also when this process is killed."""
    server = SparkServer(
        folder=folder,
        port=free_port(),
        jars=tuple(present_jars(JARS, jars_of(read_lock(JARS_LOCK), [DELTA]))),
        cores=available_cores(),
    )
    log = folder / "spark.log"
    with log.open("wb") as output:
        process = start(
            server.command(), environment=spark_environment(os.environ), folder=folder, output=output, tied=True
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_listening(server.port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
