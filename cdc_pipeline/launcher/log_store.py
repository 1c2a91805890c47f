"""Log stores with which Spark commits safely beside other writers. Set-up compiles each once and packs it as a jar."""

import hashlib
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.java import REMEDY

OLDEST_JAVA = "17"
_SOURCES = Path(__file__).parents[1] / "lake"
_HADOOP = "hadoop-client-api-*.jar"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStore:
    """A Java source file for lakes of one URL scheme."""

    scheme: str
    name: str
    remedy: str

    @property
    def source(self) -> Path:
        return _SOURCES / f"{self.name}.java"

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a Spark driver that has the jar."""
        return {f"spark.delta.logStore.{self.scheme}.impl": f"cdc.{self.name}"}

    def jar(self, folder: Path) -> Path:
        """Path of the jar for the current source, whether it exists or not."""
        digest = hashlib.sha256(self.source.read_bytes()).hexdigest()[:16]
        return folder / f"cdc-log-store-{self.scheme}-{digest}.jar"


IN_A_FOLDER = LogStore(scheme="file", name="LinkingLogStore", remedy="run `make setup`")
ON_S3 = LogStore(scheme="s3a", name="ConditionalLogStore", remedy="run `make setup JARS=s3`")


def present_log_store(log_store: LogStore, folder: Path) -> Path:
    """Returns the jar that was compiled. Raises SetupError without it: Spark's commits would not be safe."""
    jar = log_store.jar(folder)
    if not jar.exists():
        raise SetupError(f"{jar} is missing", expected="the log store of the lake", remedy=log_store.remedy)
    return jar


def compile_log_store(
    log_store: LogStore, folder: Path, jars: Iterable[Path], *, spark_home: Path, compiler: Path
) -> Path:
    """Returns the jar in `folder`, compiled if it is missing. `jars`: those of Delta, and of S3A for a lake on S3."""
    jar = log_store.jar(folder)
    if jar.exists():
        return jar
    classpath = ":".join(map(str, [*jars, *(spark_home / "jars").glob(_HADOOP)]))
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder) as scratch:
        options = ("--release", OLDEST_JAVA, "-Xlint:-options", "-cp", classpath, "-d", scratch)
        outcome = subprocess.run([compiler, *options, log_store.source], capture_output=True, text=True, check=False)
        if outcome.returncode:
            raise SetupError(f"{compiler} refuses the log store:\n{outcome.stdout}{outcome.stderr}", remedy=REMEDY)
        unfinished = Path(scratch) / "unfinished.jar"
        with zipfile.ZipFile(unfinished, "w") as archive:
            for compiled in sorted(Path(scratch).rglob("*.class")):
                archive.write(compiled, compiled.relative_to(scratch))
        unfinished.replace(jar)
    return jar
