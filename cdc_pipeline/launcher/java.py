"""Finds and checks the Java that Spark needs, and installs it as root."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cdc_pipeline.errors import SetupError

OLDEST = 17
PACKAGE = "openjdk-17-jdk-headless"
REMEDY = f"run `apt-get update && apt-get install -y {PACKAGE}` as root, or set JAVA_HOME to a JDK {OLDEST} or newer"


def find_java(environment: Mapping[str, str]) -> Path | None:
    """The Java of JAVA_HOME, else the one on PATH, as Spark looks for it."""
    return _find("java", environment)


def java_version(java: Path) -> int:
    """The feature release, such as 17; 8 for `1.8`; 0 if unknown."""
    outcome = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', outcome.stderr + outcome.stdout)
    return int(match[1]) if match else 0


def require_java(environment: Mapping[str, str]) -> Path:
    java = find_java(environment)
    if java is None:
        raise SetupError("there is no Java on this machine", expected=f"Java {OLDEST} or newer", remedy=REMEDY)
    version = java_version(java)
    if version < OLDEST:
        raise SetupError(f"{java} is Java {version}", expected=f"Java {OLDEST} or newer", remedy=REMEDY)
    return java


def require_compiler(environment: Mapping[str, str]) -> Path:
    """Returns the compiler of the JDK that has the Java. Raises SetupError for a Java runtime alone."""
    compiler = _find("javac", environment)
    if compiler is None:
        raise SetupError(
            "there is no javac beside the Java of this machine",
            expected=f"a JDK {OLDEST} or newer: what lets Spark commit safely is compiled once",
            remedy=REMEDY,
        )
    return compiler


def _find(program: str, environment: Mapping[str, str]) -> Path | None:
    home = environment.get("JAVA_HOME")
    found = shutil.which(program, path=f"{home}/bin" if home else environment.get("PATH"))
    return Path(found) if found else None


def may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install_package(package: str) -> None:
    """Installs a Debian package; needs root."""
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for words in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", package]):
        outcome = subprocess.run(["apt-get", *words], check=False, env=environment, capture_output=True, text=True)
        if outcome.returncode:
            raise SetupError(f"apt-get {' '.join(words)} failed: {outcome.stderr.strip()}", remedy=REMEDY)
