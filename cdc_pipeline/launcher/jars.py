"""Spark's extra jars: listed in jars.lock, fetched once by Spark's own resolver, checked by SHA-256."""

import fnmatch
import hashlib
import os
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from cdc_pipeline.errors import SetupError

DELTA = "delta"
S3 = "s3"
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a Java process that runs for seconds: a second compiler and parallel collection would double its time."""
AT_ONCE = 2
"""Concurrent runs of the resolver. Each is a Java virtual machine."""
PART_OF_SPARK = (
    "org.apache.hadoop:hadoop-client*",
    "org.apache.hadoop:hadoop-common",
    "org.apache.hadoop:hadoop-annotations",
    "org.apache.parquet:*",
    "org.apache.spark:*",
    "org.apache.logging*:*",
    "org.apache.httpcomponents*:*",
    "com.fasterxml.jackson.*:*",
    "com.github.*:*",
    "com.google*:*",
    "commons-*:*",
    "io.netty:*",
    "org.antlr:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
)
NOT_NEEDED = (
    "com.azure*:*",
    "com.facebook.presto:testing-mysql-server-base",
    "com.google.api*:*",
    "com.microsoft*:*",
    "com.squareup*:*",
    "ch.qos*:*",
    "io.delta:delta-kernel-unitycatalog",
    "io.grpc:*",
    "io.open*:*",
    "io.projectreactor*:*",
    "io.prometheus:*",
    "io.unitycatalog:*",
    "mysql:mysql-connector-java",
    "net.java.dev.jna:*",
    "org.apache.sshd:*",
    "org.bouncycastle:*",
    "org.eclipse.jetty*:*",
    "org.wildfly*:*",
    "software.amazon.awssdk.crt:*",
    "software.amazon.awssdk:*",
    "software.amazon.awssdk:bundle",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    set_name: str
    coordinate: str
    size_bytes: int
    sha256: str

    @property
    def module(self) -> str:
        return self.coordinate.rpartition(":")[0]

    @property
    def file_name(self) -> str:
        group, artifact, version = self.coordinate.split(":")
        return f"{group}_{artifact}-{version}.jar"


def read_lock(path: Path) -> tuple[Jar, ...]:
    with path.open("rb") as file:
        entries = tomllib.load(file)["jar"]
    return tuple(
        Jar(set_name=entry["set"], coordinate=entry["coordinate"], size_bytes=entry["bytes"], sha256=entry["sha256"])
        for entry in entries
    )


def jars_of(lock: Iterable[Jar], set_names: Iterable[str]) -> tuple[Jar, ...]:
    """Returns the jars of the named sets. Raises SetupError for a set that the lock does not have."""
    wanted, jars = set(set_names), tuple(lock)
    unknown = wanted - {jar.set_name for jar in jars}
    if unknown:
        raise SetupError(
            f"jars.lock has no set {', '.join(sorted(unknown))}",
            expected=" or ".join(sorted({jar.set_name for jar in jars})),
        )
    return tuple(jar for jar in jars if jar.set_name in wanted)


def present_jars(folder: Path, jars: Iterable[Jar]) -> list[Path]:
    """Returns the jars' paths. Raises SetupError for one that is missing or differs from the lock."""
    paths = []
    for jar in jars:
        path = folder / jar.file_name
        if not is_intact(folder, jar):
            raise SetupError(
                f"{path} is missing or differs from jars.lock",
                expected=jar.coordinate,
                remedy="run `make setup`" if jar.set_name == DELTA else f"run `make setup JARS={jar.set_name}`",
            )
        paths.append(path)
    return paths


def is_intact(folder: Path, jar: Jar) -> bool:
    path = folder / jar.file_name
    return path.is_file() and _sha256(path) == jar.sha256


def fetch_jars(folder: Path, jars: Iterable[Jar], *, spark_home: Path) -> list[Jar]:
    """Fetches the jars that are missing from `folder` or differ from the lock, and returns them."""
    missing = [jar for jar in jars if not is_intact(folder, jar)]
    if not missing:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder) as scratch:

        def fetch(number: int, together: list[Jar]) -> None:
            """Runs the resolver in a folder of its own."""
            own = Path(scratch) / str(number)
            own.mkdir()
            output = _resolve(own, together, spark_home=spark_home)
            for jar in together:
                _check(own / "jars", jar, output)
                (own / "jars" / jar.file_name).replace(folder / jar.file_name)

        with ThreadPoolExecutor(AT_ONCE) as rounds:
            list(rounds.map(fetch, count(), _one_version_each(missing)))
    return missing


def _one_version_each(jars: Iterable[Jar]) -> list[list[Jar]]:
    """Groups the jars for runs of the resolver, which fetches only one version of a module per run.

    Sets are separate, because one set may need what another one excludes.
    """
    rounds: dict[str, list[dict[str, Jar]]] = {}
    for jar in jars:
        of_set = rounds.setdefault(jar.set_name, [])
        free = next((taken for taken in of_set if jar.module not in taken), None)
        if free is None:
            of_set.append(free := {})
        free[jar.module] = jar
    return [list(taken.values()) for of_set in rounds.values() for taken in of_set]


def _excluded(jars: Iterable[Jar]) -> list[str]:
    """Globs of modules that are not fetched, without those that match a wanted jar."""
    modules = [jar.module for jar in jars]
    return [glob for glob in PART_OF_SPARK + NOT_NEEDED if not fnmatch.filter(modules, glob)]


def _resolve(scratch: Path, jars: list[Jar], *, spark_home: Path) -> str:
    """Fetches jars into `scratch`/jars by Spark's resolver, without the user's own repositories. Returns its output."""
    program = scratch / "nothing.py"
    program.touch()
    command = [
        *(str(spark_home / "bin" / "spark-submit"), "--packages", ",".join(jar.coordinate for jar in jars)),
        *("--exclude-packages", ",".join(_excluded(jars))),
        *("--conf", f"spark.jars.ivy={scratch}", str(program)),
    ]
    environment = dict(os.environ, SPARK_HOME=str(spark_home), SPARK_SUBMIT_OPTS=f"-Duser.home={scratch} {SHORT_LIVED}")
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=scratch)
    return outcome.stdout + outcome.stderr


def _check(folder: Path, jar: Jar, output: str) -> None:
    if not (folder / jar.file_name).is_file():
        tail = "\n".join(output.splitlines()[-15:])
        raise SetupError(
            f"Spark's resolver did not fetch {jar.coordinate}:\n{tail}",
            remedy="run `make setup` again when the network allows it",
        )
    found = _sha256(folder / jar.file_name)
    if found != jar.sha256:
        raise SetupError(
            f"{jar.coordinate} has SHA-256 {found}",
            expected=f"{jar.sha256} as in jars.lock",
            remedy="do not use it: the downloaded file is not the one that was locked",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
