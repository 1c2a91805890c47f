"""Makes a working installation of a fresh clone: virtual environment, this project, Java, Spark's jars.

    python3.11 -m cdc_pipeline.launcher.set_up [--lock requirements-dev.txt] [--jars s3] [--no-jars] [--mariadb]

Uses only the standard library, because it runs before anything is installed. Without changes a second run does nothing.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.jars import DELTA, S3, Jar, fetch_jars, jars_of, present_jars, read_lock
from cdc_pipeline.launcher.java import PACKAGE, install_package, may_install, require_compiler, require_java
from cdc_pipeline.launcher.log_store import IN_A_FOLDER, ON_S3, LogStore, compile_log_store
from cdc_pipeline.launcher.project import CACHE, JARS, JARS_LOCK, PROJECT, VENV

LOCK = "requirements.txt"
DEVELOPMENT_LOCK = "requirements-dev.txt"
MARIADB = ("mariadb-server-core", "mariadb-client-core")
STAMP = CACHE / "set-up.json"
INSTALLING = CACHE / "set-up.unfinished"
PYTHON = VENV / "bin" / "python"
INSTALLER = "uv"
UV = VENV / "bin" / INSTALLER
OWN_CODE = ("cdc_pipeline", "snapshot", "dags", "plugins")
NOT_STARTED = r"[/\\]tests?[/\\]"
"""The packages' own tests: nobody starts them, so they are not compiled."""
UNPACKED = ("--config-settings-package", "pyspark:--build-option=--compression=stored")
"""pyspark is built into a wheel of 400 MB before it is installed. Compressing the wheel would only cost time."""
Say = Callable[[str], None]


def set_up(lock: str, jar_sets: list[str], say: Say, *, mariadb: bool = False) -> None:
    """Sets up what is missing. What a killed run left unfinished is set up from the start.

    The packages are complete before the jars are fetched, so that another command can use them meanwhile.
    """
    CACHE.mkdir(exist_ok=True)
    with _alone("packages"):
        _java(require_java, say)
        if mariadb or lock == DEVELOPMENT_LOCK:
            _set_up_mariadb(say)
        if not _is_current(lock):
            _set_up_packages(lock, say)
        _compile(*OWN_CODE)
    if jar_sets:
        with _alone("jars"):
            _set_up_jars(jar_sets, say)
        with _alone("airflow"):
            _set_up_airflow_tables(say)


@contextmanager
def _alone(part: str) -> Iterator[None]:
    """Holds a lock, so that two runs do not set up the same part at once."""
    with (CACHE / f"set-up.{part}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def _java(require: Callable[[Mapping[str, str]], Path], say: Say) -> Path:
    """Returns the program that `require` finds. Installs a JDK if it finds none and this user may."""
    try:
        return require(os.environ)
    except SetupError as missing:
        if not may_install():
            raise
        say(f"installing Java: {missing.found}")
        install_package(PACKAGE)
        return require(os.environ)


def _set_up_mariadb(say: Say) -> None:
    """Installs the server that tests and the demo start, without a service. If it cannot, says so and goes on."""
    if shutil.which("mariadbd", path="/usr/sbin:/usr/bin"):
        return
    found = "this user may not install packages"
    if may_install():
        say("installing MariaDB")
        try:
            for package in MARIADB:
                install_package(package)
        except SetupError as error:
            found = error.found
        else:
            return
    say(f"there is no MariaDB for tests and its demo ({found}): run `apt-get install {' '.join(MARIADB)}` as root")


def _set_up_packages(lock: str, say: Say) -> None:
    STAMP.unlink(missing_ok=True)
    if INSTALLING.exists() or not _runs(PYTHON, "-m", "pip", "--version"):
        say("creating .venv")
        _make_environment()
    INSTALLING.touch()
    say(f"installing what {lock} names (about 1 GB, half a minute and more)")
    _install(lock, say)
    _pip("--no-index", "--no-build-isolation", "--no-deps", "-e", ".")
    say("compiling the packages to bytecode")
    _compile(*(str(path) for path in VENV.glob("lib/python*/site-packages")))
    _write_stamp(lock)
    INSTALLING.unlink()


def _install(lock: str, say: Say) -> None:
    """Installs by uv, four times as fast as pip. Falls back to pip, because uv does not read pip's settings."""
    installer = CACHE / f"{INSTALLER}.txt"
    installer.write_text(_requirement(lock, INSTALLER), encoding="utf-8")
    _pip("--require-hashes", "--no-deps", "-r", str(installer))
    exactly = ("--require-hashes", "--no-deps", "-r", lock)
    try:
        _run([str(UV), "pip", "install", "--quiet", "--native-tls", "--python", str(PYTHON), *UNPACKED, *exactly])
    except SetupError as error:
        say(f"installing by pip, which is slower: {error.found}")
        _pip(*exactly)


def _requirement(lock: str, name: str) -> str:
    """Returns one requirement of the lock with its hashes. Only requirements start at the beginning of a line."""
    requirements = re.split(r"\n(?=\S)", (PROJECT / lock).read_text(encoding="utf-8"))
    return next(requirement for requirement in requirements if requirement.partition("==")[0] == name)


def _pip(*arguments: str) -> None:
    _run([str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments])


def _compile(*folders: str) -> None:
    """Writes the bytecode of modules that have none. A module that does not compile is left to whoever imports it.

    Without it every process compiles each module that it imports, for seconds, where bytecode is not written on
    import: accounts that may not write here, `PYTHONDONTWRITEBYTECODE`.
    """
    command = [str(PYTHON), "-m", "compileall", "-qq", "-j", "0", "-x", NOT_STARTED, *folders]
    subprocess.run(command, cwd=PROJECT, capture_output=True, check=False)


def _make_environment() -> None:
    if find_spec("ensurepip") is None:
        package = f"python3.{sys.version_info.minor}-venv"
        if not may_install():
            raise SetupError(
                "this Python cannot create virtual environments", remedy=f"run `apt-get install {package}`"
            )
        install_package(package)
    _run([sys.executable, "-m", "venv", "--clear", str(VENV)])


def _set_up_jars(jar_sets: list[str], say: Say) -> None:
    jars = jars_of(read_lock(JARS_LOCK), jar_sets)
    try:
        present_jars(JARS, jars)
    except SetupError:
        say(f"fetching Spark's jars ({', '.join(jar_sets)})")
        fetch_jars(JARS, jars, spark_home=_spark_home())
    _set_up_log_store(IN_A_FOLDER, jars, say)
    if S3 in jar_sets:
        _set_up_log_store(ON_S3, jars, say)


def _set_up_airflow_tables(say: Say) -> None:
    """Makes the copy of Airflow's tables with which a new installation starts sooner. It may be missing."""
    installed = STAMP.stat().st_mtime
    if any(found.stat().st_mtime >= installed for found in CACHE.glob("airflow-tables-*.sql")):
        return
    say("preparing Airflow's tables")
    try:
        _run([str(PYTHON), "-m", "cdc_pipeline.launcher.airflow_tables", "--template"])
    except SetupError as error:
        say(f"Airflow will create its tables at its first start: {error.found}")


def _set_up_log_store(log_store: LogStore, jars: Sequence[Jar], say: Say) -> None:
    if log_store.jar(JARS).exists():
        return
    compiler = _java(require_compiler, say)
    say(f"compiling {log_store.name}")
    compile_log_store(log_store, JARS, present_jars(JARS, jars), spark_home=_spark_home(), compiler=compiler)


def _spark_home() -> Path:
    return next(VENV.glob("lib/python*/site-packages/pyspark"))


def _current_stamp(lock: str) -> dict[str, str]:
    """What an environment of this lock depends on. The development lock contains the other one."""
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
        raise SetupError(f"`{' '.join(command)}` failed:\n{tail}", remedy="correct what it names and run it again")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", default=LOCK, choices=[LOCK, DEVELOPMENT_LOCK])
    parser.add_argument("--jars", action="append", default=[], help="another set of jars.lock, such as s3")
    parser.add_argument("--no-jars", action="store_true", help="the packages alone")
    parser.add_argument("--mariadb", action="store_true", help="a MariaDB server too, for the demo that reads one")
    arguments = parser.parse_args()
    began = time.monotonic()

    def say(line: str) -> None:
        sys.stderr.write(f"set-up: {line} ...\n")

    try:
        set_up(arguments.lock, [] if arguments.no_jars else [DELTA, *arguments.jars], say, mariadb=arguments.mariadb)
    except SetupError as error:
        sys.stderr.write(f"set-up: {error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"set-up: {error}; run it as an account that may write to {PROJECT}, with room on its disk\n")
        return 1
    sys.stderr.write(f"set-up: ready ({time.monotonic() - began:.1f} s)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
