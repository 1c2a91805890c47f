"""A machine without a fitting Java is told so in one line."""

from pathlib import Path

import pytest

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.java import java_version, require_compiler, require_java


def java_that_says(folder: Path, version: str) -> dict[str, str]:
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="utf-8")
    program.chmod(0o755)
    return {"JAVA_HOME": str(folder), "PATH": "/usr/bin:/bin"}


def test_no_java_names_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(
        SetupError, match=r"no Java.*expected Java 17 or newer.*apt-get install -y openjdk-17"
    ) as raised:
        require_java({"PATH": str(tmp_path)})
    assert "\n" not in str(raised.value)


def test_a_runtime_without_a_compiler_is_refused_with_the_command_that_installs_one(tmp_path: Path) -> None:
    runtime = java_that_says(tmp_path, "17.0.15")
    require_java(runtime)
    with pytest.raises(SetupError, match=r"no javac beside.*; expected a JDK 17 or newer.*apt-get install -y openjdk"):
        require_compiler(runtime)
    (tmp_path / "bin" / "javac").touch(mode=0o755)
    assert require_compiler(runtime) == tmp_path / "bin" / "javac"


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22"])
def test_an_old_java_is_refused_by_its_number(tmp_path: Path, version: str) -> None:
    with pytest.raises(SetupError, match=r"is Java (8|11); expected Java 17 or newer"):
        require_java(java_that_says(tmp_path, version))


@pytest.mark.parametrize(("version", "feature"), [("17.0.15", 17), ("21", 21)])
def test_a_new_java_is_taken(tmp_path: Path, version: str, feature: int) -> None:
    assert java_version(require_java(java_that_says(tmp_path, version))) == feature
