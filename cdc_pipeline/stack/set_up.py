"""From a fresh clone to a working installation: virtual environment, this project, Java, Spark's jars.

    python3.11 -m cdc_pipeline.stack.set_up [--lock requirements-dev.txt] [--jars s3]

Standard library only: it runs before anything is installed. A second run with nothing changed does nothing.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from cdc_pipeline.errors import SetupError
from cdc_pipeline.stack.jars import DELTA, S3, Jar, fetch_jars, jars_of, present_jars, read_lock
from cdc_pipeline.stack.java import install_package, may_install, require_java
from cdc_pipeline.stack.log_store import IN_A_FOLDER, ON_S3, LogStore, compile_log_store, find_compiler
from cdc_pipeline.stack.project import CACHE, JARS, JARS_LOCK, PROJECT, VENV

LOCK = "requirements.txt"
DEVELOPMENT_LOCK = "requirements-dev.txt"
STAMP = CACHE / "set-up.json"
INSTALLING = CACHE / "set-up.unfinished"
PYTHON = VENV / "bin" / "python"
SPARK = frozenset({"pyspark", "py4j"})
Tell = Callable[[str], None]


def set_up(lock: str, jar_sets: list[str], tell: Tell) -> None:
    """What is there already stays; what a killed run left half done is made anew."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "set-up.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        _set_up_java(tell)
        if _is_current(lock):
            _set_up_jars(jar_sets, tell)
        else:
            _set_up_packages_and_jars(lock, jar_sets, tell)


def _set_up_java(tell: Tell) -> None:
    try:
        require_java(os.environ)
    except SetupError as missing:
        if not may_install():
            raise
        tell(f"installing Java: {missing.found}")
        install_package("openjdk-17-jdk-headless")
        require_java(os.environ)


def _set_up_packages_and_jars(lock: str, jar_sets: list[str], tell: Tell) -> None:
    """Spark's package is built, and its resolver fetches the jars, while all others are installed in two halves."""
    STAMP.unlink(missing_ok=True)
    if INSTALLING.exists() or not _runs(PYTHON, "-m", "pip", "--version"):
        tell("making .venv")
        _make_environment()
    INSTALLING.touch()
    tell(f"installing what {lock} names (about 1 GB, half a minute and more)")
    spark, *others = _parts(lock)
    with ThreadPoolExecutor() as beside:
        works = [
            beside.submit(_install_spark, spark, jar_sets, tell),
            *(beside.submit(_install, part) for part in others),
        ]
        for work in works:
            work.result()
    _pip("--no-index", "--no-build-isolation", "--no-deps", "-e", ".")
    _write_stamp(lock)
    INSTALLING.unlink()


def _install_spark(requirements: Path, jar_sets: list[str], tell: Tell) -> None:
    _install(requirements)
    _set_up_jars(jar_sets, tell)


def _install(requirements: Path) -> None:
    _pip("--require-hashes", "--no-deps", "-r", str(requirements))


def _parts(lock: str) -> list[Path]:
    """The lock in three: what Spark's resolver needs, and two halves of the rest.

    Each requirement begins a line, its hashes do not.
    """
    requirements = re.split(r"\n(?=\S)", (PROJECT / lock).read_text(encoding="utf-8"))
    spark = [requirement for requirement in requirements if requirement.partition("==")[0] in SPARK]
    others = [requirement for requirement in requirements if requirement not in spark]
    paths = []
    for number, part in enumerate((spark, others[::2], others[1::2])):
        paths.append(CACHE / f"requirements-{number}.txt")
        paths[-1].write_text("\n".join(part) + "\n", encoding="utf-8")
    return paths


def _pip(*arguments: str) -> None:
    _run([str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments])


def _make_environment() -> None:
    if find_spec("ensurepip") is None:
        package = f"python3.{sys.version_info.minor}-venv"
        if not may_install():
            raise SetupError("this Python cannot make virtual environments", remedy=f"run `apt-get install {package}`")
        install_package(package)
    _run([sys.executable, "-m", "venv", "--clear", str(VENV)])


def _set_up_jars(jar_sets: list[str], tell: Tell) -> None:
    jars = jars_of(read_lock(JARS_LOCK), jar_sets)
    try:
        present_jars(JARS, jars)
    except SetupError:
        tell(f"fetching Spark's jars ({', '.join(jar_sets)})")
        fetch_jars(JARS, jars, spark_home=_spark_home())
    _set_up_log_store(IN_A_FOLDER, jars, tell)
    if S3 in jar_sets:
        _set_up_log_store(ON_S3, jars, tell)


def _set_up_log_store(log_store: LogStore, jars: Sequence[Jar], tell: Tell) -> None:
    compiler = find_compiler(os.environ)
    if log_store.jar(JARS).exists():
        return
    if compiler is None:
        tell(log_store.without)
        return
    tell(f"compiling {log_store.name}")
    compile_log_store(log_store, JARS, present_jars(JARS, jars), spark_home=_spark_home(), compiler=compiler)


def _spark_home() -> Path:
    return next(VENV.glob("lib/python*/site-packages/pyspark"))


def _current_stamp(lock: str) -> dict[str, str]:
    """The development lock holds everything that the other one holds, so it vouches for both."""
    files = ["pyproject.toml", LOCK] + ([DEVELOPMENT_LOCK] if lock == DEVELOPMENT_LOCK else [])
    hashes = {name: hashlib.sha256((PROJECT / name).read_bytes()).hexdigest() for name in files}
    return hashes | {"python": sys.version, "folder": str(PROJECT)}


def _is_current(lock: str) -> bool:
    if not STAMP.exists() or not PYTHON.exists():
        return False
    written = json.loads(STAMP.read_text(encoding="utf-8"))
    return all(written.get(name) == value for name, value in _current_stamp(lock).items())


def _write_stamp(lock: str) -> None:
    unfinished = STAMP.with_suffix(".new")
    unfinished.write_text(json.dumps(_current_stamp(lock), indent=1), encoding="utf-8")
    unfinished.replace(STAMP)


def _runs(program: Path, *arguments: str) -> bool:
    if not program.exists():
        return False
    return subprocess.run([program, *arguments], capture_output=True, check=False).returncode == 0


def _run(command: list[str]) -> None:
    outcome = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if outcome.returncode:
        tail = "\n".join((outcome.stdout + outcome.stderr).splitlines()[-15:])
        raise SetupError(f"`{' '.join(command)}` failed:\n{tail}", remedy="mend what it names and run it again")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", default=LOCK, choices=[LOCK, DEVELOPMENT_LOCK])
    parser.add_argument("--jars", action="append", default=[], help="another set of jars.lock, such as s3")
    arguments = parser.parse_args()
    began = time.monotonic()

    def tell(line: str) -> None:
        sys.stderr.write(f"set-up: {line} ...\n")

    try:
        set_up(arguments.lock, [DELTA, *arguments.jars], tell)
    except SetupError as error:
        sys.stderr.write(f"set-up: {error}\n")
        return error.exit_code
    sys.stderr.write(f"set-up: ready ({time.monotonic() - began:.1f} s)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
