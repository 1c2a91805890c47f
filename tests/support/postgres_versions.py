"""PostgreSQL servers of older versions, unpacked from what set-up fetched."""

from pathlib import Path

from cdc_pipeline.launcher.jars import Jar, jars_of, read_lock
from cdc_pipeline.launcher.project import JARS_LOCK
from tests.support.unpacked import unpacked_server

SET_NAME = "postgres"


def locked_versions() -> dict[str, Jar]:
    """By major version."""
    jars = jars_of(read_lock(JARS_LOCK), [SET_NAME])
    return {jar.coordinate.rpartition(":")[2].partition(".")[0]: jar for jar in jars}


def unpacked_binaries(jar: Jar) -> Path:
    """The folder with `postgres` and `initdb`."""
    return unpacked_server(jar, ".txz") / "bin"
