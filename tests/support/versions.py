"""How old the pinned versions are: `make audit` writes the page docs/reports/versions.md.

uv asks the index that it is set to, and resolves twice: what the lock pins, and the newest that requirements.in allows.
Jars tell their age themselves, by the newest file inside.
"""

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from zipfile import ZipFile

from cdc_pipeline.launcher.jars import Jar, read_lock
from cdc_pipeline.launcher.project import JARS, JARS_LOCK, PROJECT

PAGE = PROJECT / "docs" / "reports" / "versions.md"
UV = str(Path(sys.executable).parent / "uv")
HEAD = """# How old the pinned versions are

Written by `make audit`. It knows no advisories: docs/explanation/security.md says when to run it, and what else to run.

"""
JARS_HEAD = """
## Jars

They come with the versions of Spark and Delta above. A date is that of the newest file inside; some builds hide it.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    number: str
    uploaded: date | None

    def __str__(self) -> str:
        return f"{self.number} | {self.uploaded or 'not told'}"


def versions(lock: str) -> dict[str, Version]:
    """Of the packages of a pylock.toml; a version is as old as its first file."""
    found = {}
    for package in tomllib.loads(lock)["packages"]:
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        times = [file["upload-time"] for file in files if "upload-time" in file]
        found[package["name"]] = Version(number=package["version"], uploaded=min(times).date() if times else None)
    return found


def page(pinned: Mapping[str, Version], newest: Mapping[str, Version], jars: Mapping[str, date]) -> str:
    rows = []
    for name, version in sorted(pinned.items()):
        newer = newest.get(name, version)
        rows.append(f"| {name} | {version} | {'the same |' if newer == version else newer} |")
    head = "| package | pinned | uploaded | newest that requirements.in allows | uploaded |\n|---|---|---|---|---|\n"
    ages = [f"| {coordinate} | {built if built.year > 1980 else 'hidden'} |" for coordinate, built in jars.items()]
    return HEAD + head + "\n".join(rows) + "\n" + JARS_HEAD + "\n".join(["| jar | built |", "|---|---|", *ages]) + "\n"


def resolved(requirements: Path) -> dict[str, Version]:
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "pylock.toml"
        words = (UV, "pip", "compile", "--quiet", "--python-version", "3.11", "--format", "pylock.toml")
        subprocess.run([*words, str(requirements), "--output-file", str(lock)], check=True)
        return versions(lock.read_text(encoding="utf-8"))


def built(folder: Path, jars: Sequence[Jar]) -> dict[str, date]:
    """Of the jars that are here."""
    ages = {}
    for jar in sorted(jars, key=lambda jar: jar.coordinate):
        if (folder / jar.file_name).exists():
            with ZipFile(folder / jar.file_name) as archive:
                ages[jar.coordinate] = date(*max(entry.date_time for entry in archive.infolist())[:3])
    return ages


if __name__ == "__main__":
    pinned, newest = (resolved(PROJECT / name) for name in ("requirements.txt", "requirements.in"))
    PAGE.write_text(page(pinned, newest, built(JARS, read_lock(JARS_LOCK))), encoding="utf-8")
