"""A log that is too long is put aside while its process goes on writing."""

import os
import time
from pathlib import Path

from cdc_pipeline.launcher.launch import LONGEST_LOG_BYTES, opened_log, shorten, shorten_each
from tests.integration.test_no_room import files_no_longer_than


def test_the_writer_goes_on_at_the_beginning_of_the_log_that_was_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "consumer.log"
    with opened_log(path) as output:
        os.truncate(path, LONGEST_LOG_BYTES)
        assert shorten(path)
        assert path.stat().st_size == LONGEST_LOG_BYTES
        output.write(b"one line too many\n")
        output.flush()
        shorten(path)
        output.write(b"goes on\n")
        output.flush()
        shorten(path)
    assert path.read_bytes() == b"goes on\n"
    assert path.with_suffix(".log.1").read_bytes().endswith(b"\0one line too many\n")


def test_without_room_the_log_and_the_one_put_aside_before_stay_as_they_are(tmp_path: Path) -> None:
    path = long_log(tmp_path, LONGEST_LOG_BYTES + 1)
    path.with_suffix(".log.1").write_bytes(b"an older log\n")
    with files_no_longer_than(1000):
        assert not shorten(path)
    assert {found.name: found.stat().st_size for found in tmp_path.iterdir()} == {
        "consumer.log": LONGEST_LOG_BYTES + 1,
        "consumer.log.1": len("an older log\n"),
    }


def test_a_log_that_could_not_be_put_aside_is_left_for_a_while(tmp_path: Path) -> None:
    path = long_log(tmp_path, LONGEST_LOG_BYTES + 1)
    with files_no_longer_than(1000):
        not_before = shorten_each([path], 0.0)
    assert not_before > time.monotonic() + 1
    assert shorten_each([path], not_before) == not_before
    assert path.stat().st_size == LONGEST_LOG_BYTES + 1
    assert shorten_each([path], 0.0) <= time.monotonic()
    assert path.stat().st_size == 0


def test_of_a_huge_log_only_the_end_is_put_aside(tmp_path: Path) -> None:
    path = long_log(tmp_path, 3 * LONGEST_LOG_BYTES)
    with path.open("ab") as output:
        output.write(b"the last line\n")
    assert shorten(path)
    assert path.stat().st_size == 0
    assert path.with_suffix(".log.1").stat().st_size == 2 * LONGEST_LOG_BYTES
    assert path.with_suffix(".log.1").read_bytes().endswith(b"\0the last line\n")


def test_a_log_that_nobody_writes_yet_is_put_aside_without_a_copy(tmp_path: Path) -> None:
    path = long_log(tmp_path, LONGEST_LOG_BYTES + 1)
    before = path.stat().st_ino
    with opened_log(path):
        assert path.with_suffix(".log.1").stat().st_ino == before
        assert path.stat().st_size == 0


def test_a_log_that_does_not_exist_needs_no_room(tmp_path: Path) -> None:
    assert shorten(tmp_path / "consumer.log")


def long_log(folder: Path, size_bytes: int) -> Path:
    path = folder / "consumer.log"
    path.touch()
    os.truncate(path, size_bytes)
    return path
