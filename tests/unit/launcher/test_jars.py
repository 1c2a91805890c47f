"""The jars that Spark gets are those of the lock and no others."""

from dataclasses import replace
from pathlib import Path

import pytest

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.jars import DELTA, Jar, jars_of, present_jars, read_lock
from cdc_pipeline.launcher.project import JARS_LOCK

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
JAR = Jar(set_name=DELTA, coordinate="org.example:thing:1.0", size_bytes=0, sha256=EMPTY)


def test_the_lock_names_both_sets_with_hashes() -> None:
    lock = read_lock(JARS_LOCK)
    assert len(jars_of(lock, ["delta"])) == 4
    assert len(jars_of(lock, ["s3"])) == 36
    assert all(len(jar.sha256) == 64 for jar in lock)


def test_a_set_that_the_lock_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(SetupError, match="no set gold; expected connect or delta or kafka or mysql or postgres or s3"):
        jars_of(read_lock(JARS_LOCK), ["delta", "gold"])


def test_a_missing_jar_is_refused_with_the_command_that_brings_it(tmp_path: Path) -> None:
    with pytest.raises(
        SetupError, match=r"is missing or differs from jars.lock; expected org.example:thing:1.0; run `make"
    ):
        present_jars(tmp_path, [JAR])


def test_a_missing_jar_of_another_set_is_refused_with_the_command_for_that_set(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"run `make setup JARS=s3`$"):
        present_jars(tmp_path, jars_of(read_lock(JARS_LOCK), ["s3"]))


def test_a_jar_cut_short_or_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "org.example_thing-1.0.jar"
    jar = replace(JAR, size_bytes=2, sha256="fb8e20fc2e4c3f248c60c39bd652f3c1347298bb977b8b4d5903b85055620603")
    path.write_text("ab", encoding="utf-8")
    assert present_jars(tmp_path, [jar]) == [path]
    for other in ("ba", "abc", "a"):
        path.write_text(other, encoding="utf-8")
        with pytest.raises(SetupError, match=r"differs from jars\.lock"):
            present_jars(tmp_path, [jar])
