"""What is no file of events, or may not be read, is refused by name before it is begun."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_pipeline.errors import SourceError
from tests.unit.sources.test_debezium_files import MUCH, Begun, files_of, texts, write


@pytest.fixture
def begun() -> Begun:
    return Begun()


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_that_leaves(path: Path) -> None:
    outside = path.parents[1] / f"outside of {path.parent.name}.jsonl"
    write(outside, "1\n")
    path.symlink_to(outside)


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (a_folder, "is a folder; expected a file with one event per line; move it away"),
        (os.mkfifo, "is a FIFO; expected a file"),
        (a_link_that_leaves, "is a symbolic link that leaves"),
        (a_link_to_itself, "cannot read the file .*: Too many levels of symbolic links"),
        (a_link_to_nothing, "is gone"),
    ],
)
def test_what_is_no_file_is_refused_by_name_and_never_begun(
    tmp_path: Path, begun: Begun, make: Callable[[Path], None], words: str
) -> None:
    make(tmp_path / "a.jsonl")
    files = files_of(tmp_path, begun)
    with pytest.raises(SourceError, match=rf"a\.jsonl.* {words}|{words}"):
        files.next_lines(MUCH)
    files.close()
    assert begun.names == {}


def test_a_link_inside_of_the_folder_is_read(tmp_path: Path, begun: Begun) -> None:
    write(tmp_path / "events", "1\n")
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "events")
    files = files_of(tmp_path, begun)
    assert texts(files) == ["1"]
    files.close()


@pytest.mark.parametrize("name", [b"\xff.jsonl", b"a\nb.jsonl"])
def test_a_name_that_cannot_be_kept_is_refused(tmp_path: Path, begun: Begun, name: bytes) -> None:
    (tmp_path / os.fsdecode(name)).touch()
    with pytest.raises(
        SourceError, match="has a name that is no printable UTF-8 text; expected a name such as"
    ) as found:
        files_of(tmp_path, begun).next_lines(MUCH)
    assert str(found.value).isprintable()
    assert begun.names == {}


def test_a_file_that_may_not_be_read_is_refused_by_name(tmp_path: Path, begun: Begun) -> None:
    """Root may read everything: it becomes somebody else for this."""
    write(tmp_path / "a.jsonl", "1\n")
    (tmp_path / "a.jsonl").chmod(0)
    files, own = files_of(tmp_path, begun), os.geteuid()
    if own == 0:
        os.seteuid(65_534)
    try:
        with pytest.raises(SourceError, match=r"cannot read the (?:file|folder) .*: Permission denied"):
            files.next_lines(MUCH)
    finally:
        os.seteuid(own)
