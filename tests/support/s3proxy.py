"""An S3 server that keeps its objects in a folder, as a process of its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc_pipeline.launcher.jars import jars_of, present_jars, read_lock
from cdc_pipeline.launcher.java import require_java
from cdc_pipeline.launcher.launch import start
from cdc_pipeline.launcher.project import JARS, JARS_LOCK
from cdc_pipeline.settings.installation.ports import free_port
from tests.support.eventually import await_listener
from tests.support.s3 import BUCKET, LOOPBACK

SET = "s3proxy"
TIMEOUT_SECONDS = 120
PROPERTIES = """\
s3proxy.authorization=none
s3proxy.endpoint={endpoint}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={folder}
jclouds.identity=none
jclouds.credential=none
"""
QUIET = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""


@contextmanager
def started_s3proxy(folder: Path) -> Iterator[str]:
    """`http://127.0.0.1:port` of a server with BUCKET; what `folder` holds from an earlier one is there again."""
    endpoint = f"http://{LOOPBACK}:{free_port()}"
    objects, properties = folder / "objects", folder / "s3proxy.properties"
    (objects / BUCKET).mkdir(parents=True, exist_ok=True)
    properties.write_text(PROPERTIES.format(endpoint=endpoint, folder=objects), encoding="utf-8")
    (folder / "logback.xml").write_text(QUIET, encoding="utf-8")
    jars = present_jars(JARS, jars_of(read_lock(JARS_LOCK), [SET]))
    java = [
        str(require_java(os.environ)),
        "-Xmx512m",
        f"-Dlogback.configurationFile={folder}/logback.xml",
        "-cp",
        ":".join(map(str, jars)),
    ]
    log = folder / "s3proxy.log"
    with log.open("wb") as output:
        command = [*java, "org.gaul.s3proxy.Main", "--properties", str(properties)]
        process = start(command, environment=os.environ, folder=folder, output=output, tied=True)
    try:
        await_listener(process, int(endpoint.rpartition(":")[2]), TIMEOUT_SECONDS, log.read_text)
        yield endpoint
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)
