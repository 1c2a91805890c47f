"""The log store that lets many Spark drivers write one table on S3: compiled once at set-up, packed as a jar."""

import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from cdc_pipeline.errors import SetupError
from cdc_pipeline.stack.java import REMEDY

LOG_STORE_CLASS = "cdc.ConditionalLogStore"
OLDEST_JAVA = "17"
ONE_DRIVER = "without a JDK the log store for S3 is not compiled: only one Spark driver may write to a lake on S3"
_SOURCE = Path(__file__).parents[1] / "lake" / "ConditionalLogStore.java"
_SPARK_HAS = "hadoop-client-api-*.jar"


def log_store_jar(folder: Path) -> Path:
    """Where the jar of this very source lies, or would lie."""
    return folder / f"cdc-log-store-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]}.jar"


def find_compiler(environment: Mapping[str, str]) -> Path | None:
    home = environment.get("JAVA_HOME")
    found = shutil.which("javac", path=f"{home}/bin" if home else environment.get("PATH"))
    return Path(found) if found else None


def present_log_store(folder: Path, environment: Mapping[str, str]) -> Path | None:
    """None where set-up could not compile it; raises SetupError where it could."""
    jar = log_store_jar(folder)
    if jar.exists():
        return jar
    if find_compiler(environment) is not None:
        raise SetupError(f"{jar} is missing", expected="the log store for S3", remedy="run `make setup JARS=s3`")
    return None


def compile_log_store(folder: Path, jars: Iterable[Path], *, spark_home: Path, compiler: Path) -> Path:
    """The jar in `folder`; `jars` are Delta's and S3A's."""
    jar = log_store_jar(folder)
    if jar.exists():
        return jar
    classpath = ":".join(map(str, [*jars, *(spark_home / "jars").glob(_SPARK_HAS)]))
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder) as scratch:
        options = ("--release", OLDEST_JAVA, "-Xlint:-options", "-cp", classpath, "-d", scratch)
        outcome = subprocess.run([compiler, *options, _SOURCE], capture_output=True, text=True, check=False)
        if outcome.returncode:
            raise SetupError(f"{compiler} refuses the log store:\n{outcome.stdout}{outcome.stderr}", remedy=REMEDY)
        unfinished = Path(scratch) / "unfinished.jar"
        with zipfile.ZipFile(unfinished, "w") as archive:
            for compiled in sorted(Path(scratch).rglob("*.class")):
                archive.write(compiled, compiled.relative_to(scratch))
        unfinished.replace(jar)
    return jar
