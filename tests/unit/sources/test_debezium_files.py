"""Files of a stream partition: read in the order of their names, once, and only as far as they are written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_pipeline.errors import SourceError, SourceGap
from cdc_pipeline.sources.files.partition_files import PartitionFiles, partition_folders
from cdc_pipeline.steps import no_step

MUCH = 1 << 20


class Begun:
    """What a metadata store remembers of one stream partition."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}

    def begin(self, name: str) -> int:
        number = next((number for number, known in self.names.items() if known == name), len(self.names) + 1)
        self.names[number] = name
        return number


@pytest.fixture
def begun() -> Begun:
    return Begun()


@pytest.fixture
def opened(tmp_path: Path, begun: Begun) -> Callable[[int], PartitionFiles]:
    def open_at(offset: int = 0) -> PartitionFiles:
        return PartitionFiles(folder=tmp_path, offset=offset, begun=begun.names, begin=begun.begin, on_step=no_step)

    return open_at


def files_of(folder: Path, begun: Begun, *, offset: int = 0, digest: str = "") -> PartitionFiles:
    return PartitionFiles(
        folder=folder, offset=offset, begun=begun.names, begin=begun.begin, on_step=no_step, digest=digest
    )


def write(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def texts(files: PartitionFiles, most_bytes: int = MUCH) -> list[str]:
    return [line.text.decode().strip() for line in files.next_lines(most_bytes)]


Open = Callable[[int], PartitionFiles]


def test_files_come_by_name_and_every_line_has_its_own_rising_place(tmp_path: Path, opened: Open) -> None:
    write(tmp_path / "b.jsonl", "3\n")
    write(tmp_path / "a.jsonl", "1\n2\n")
    write(tmp_path / "a.txt", "no event\n")
    files = opened(0)
    lines = files.next_lines(MUCH)
    assert [(line.file, line.number, line.text) for line in lines] == [
        ("a.jsonl", 1, b"1\n"),
        ("a.jsonl", 2, b"2\n"),
        ("b.jsonl", 1, b"3\n"),
    ]
    assert [line.place for line in lines] == [1 << 32, 1 << 32 | 1, 2 << 32]
    assert files.at_end
    files.close()


def test_reading_goes_on_at_any_offset_behind_what_was_given(tmp_path: Path, opened: Open) -> None:
    write(tmp_path / "a.jsonl", "1\n2\n")
    write(tmp_path / "b.jsonl", "3\n4\n")
    files = opened(0)
    found, offsets = [], []
    while not files.at_end:
        found += texts(files, most_bytes=1)
        offsets.append(files.offset)
    files.close()
    assert found == ["1", "2", "3", "4"]
    for number, offset in enumerate(offsets[:4], start=1):
        resumed = opened(offset)
        assert texts(resumed) == found[number:]
        resumed.close()


def test_a_line_without_an_end_waits_for_the_rest(tmp_path: Path, opened: Open) -> None:
    write(tmp_path / "a.jsonl", "1\n2")
    files = opened(0)
    assert texts(files) == ["1"]
    assert texts(files) == []
    write(tmp_path / "a.jsonl", "22")
    assert texts(files) == []
    write(tmp_path / "a.jsonl", "\n3\n")
    assert texts(files) == ["222", "3"]
    files.close()


def test_the_last_line_of_a_file_is_whole_once_another_file_is_there(tmp_path: Path, opened: Open) -> None:
    write(tmp_path / "a.jsonl", "1\n2")
    files = opened(0)
    assert texts(files) == ["1"]
    write(tmp_path / "b.jsonl", "3\n")
    assert texts(files) == ["2", "3"]
    files.close()


def test_a_file_that_comes_before_one_that_was_begun_is_refused_by_name(tmp_path: Path, opened: Open) -> None:
    write(tmp_path / "b.jsonl", "1\n")
    files = opened(0)
    assert texts(files) == ["1"]
    write(tmp_path / "a.jsonl", "0\n")
    with pytest.raises(SourceError, match=r"a\.jsonl came after b\.jsonl was begun; expected names that rise"):
        texts(files)
    files.close()


def test_a_file_that_comes_before_one_that_only_waits_is_read_first(tmp_path: Path, opened: Open) -> None:
    for name in ("a", "c"):
        write(tmp_path / f"{name}.jsonl", f"{name}\n")
    files = opened(0)
    assert texts(files, most_bytes=1) == ["a"]
    write(tmp_path / "b.jsonl", "b\n")
    assert texts(files) == ["b", "c"]
    files.close()


def test_what_was_read_is_never_looked_at_again(tmp_path: Path, opened: Open) -> None:
    write(tmp_path / "a.jsonl", "1\n")
    write(tmp_path / "b.jsonl", "2\n")
    files = opened(0)
    texts(files)
    offset = files.offset
    files.close()
    (tmp_path / "a.jsonl").unlink()
    write(tmp_path / "b.jsonl", "3\n")
    resumed = opened(offset)
    assert texts(resumed) == ["3"]
    resumed.close()


def test_a_file_that_is_to_be_read_on_and_is_gone_is_named(tmp_path: Path, opened: Open) -> None:
    write(tmp_path / "a.jsonl", "1\n")
    files = opened(0)
    texts(files)
    files.close()
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(SourceGap, match=r"a\.jsonl is gone; expected it, since line 2"):
        texts(opened(files.offset))


def test_a_file_that_lost_lines_is_named(tmp_path: Path, opened: Open) -> None:
    write(tmp_path / "a.jsonl", "1\n2\n3\n")
    files = opened(0)
    texts(files)
    (tmp_path / "a.jsonl").write_text("1\n", encoding="utf-8")
    with pytest.raises(SourceGap, match=r"a\.jsonl has 2 bytes; expected the 6 bytes that were read"):
        texts(files)
    files.close()
    resumed = opened(files.offset)
    with pytest.raises(SourceGap, match=r"a\.jsonl has 1 lines; expected the 3 lines that were read"):
        texts(resumed)
    resumed.close()


def test_a_file_that_was_begun_but_not_registered_is_begun_again_under_its_number(
    tmp_path: Path, opened: Open, begun: Begun
) -> None:
    write(tmp_path / "a.jsonl", "1\n")
    files = opened(0)
    texts(files)
    files.close()
    again = opened(0)
    assert [line.place for line in again.next_lines(MUCH)] == [1 << 32]
    again.close()
    assert begun.names == {1: "a.jsonl"}


@pytest.mark.parametrize("name", ["one", "01", "-1", "0.5"])
def test_a_folder_that_is_no_number_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(SourceError, match=f"{name} is no stream partition; expected folders that are named 0, 1, 2"):
        partition_folders(tmp_path)


def test_events_beside_the_folders_are_refused_and_other_files_are_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "README").touch()
    assert partition_folders(tmp_path) == {0: tmp_path / "0"}
    (tmp_path / "events.jsonl").touch()
    with pytest.raises(SourceError, match=r"events\.jsonl is no stream partition"):
        partition_folders(tmp_path)


def test_a_path_that_is_missing_or_empty_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"cannot read the folder .*nowhere: No such file"):
        partition_folders(tmp_path / "nowhere")
    with pytest.raises(SourceError, match="holds no stream partition"):
        partition_folders(tmp_path)


def test_a_file_that_was_replaced_by_a_longer_one_is_named_and_nothing_of_it_is_read(
    tmp_path: Path, begun: Begun
) -> None:
    write(tmp_path / "a.jsonl", "1\n2\n")
    first = files_of(tmp_path, begun)
    digest = first.next_lines(MUCH)[-1].digest
    (tmp_path / "a.jsonl").unlink()
    write(tmp_path / "a.jsonl", "9\n8\n7\n6\n")
    with pytest.raises(SourceGap, match=r"a\.jsonl has other first 2 lines than were read of it; expected the lines"):
        first.next_lines(MUCH)
    first.close()
    resumed = files_of(tmp_path, begun, offset=first.offset, digest=digest)
    with pytest.raises(SourceGap, match=r"other first 2 lines"):
        resumed.next_lines(MUCH)
    resumed.close()


def test_a_file_that_is_rewritten_in_place_while_it_is_read_is_named(tmp_path: Path, begun: Begun) -> None:
    write(tmp_path / "a.jsonl", "1\n2\n")
    files = files_of(tmp_path, begun)
    assert texts(files) == ["1", "2"]
    (tmp_path / "a.jsonl").write_text("9\n8\n7\n6\n", encoding="utf-8")
    with pytest.raises(SourceGap, match=r"a\.jsonl has other bytes than were read of it"):
        files.next_lines(MUCH)
    files.close()


def test_a_copy_that_begins_with_the_same_lines_is_read_on(tmp_path: Path, begun: Begun) -> None:
    write(tmp_path / "a.jsonl", "1\n2\n")
    files = files_of(tmp_path, begun)
    assert texts(files) == ["1", "2"]
    write(tmp_path / "copy", "1\n2\n3\n")
    (tmp_path / "copy").rename(tmp_path / "a.jsonl")
    assert texts(files) == ["3"]
    files.close()


def test_a_file_whose_last_line_had_no_end_is_known_again(tmp_path: Path, begun: Begun) -> None:
    write(tmp_path / "a.jsonl", "1\n2")
    write(tmp_path / "b.jsonl", "3\n")
    files = files_of(tmp_path, begun)
    first, second = (files.next_lines(1)[0] for _ in range(2))
    assert [first.text, second.text] == [b"1\n", b"2"]
    place, digest = files.offset, second.digest
    files.close()
    resumed = files_of(tmp_path, begun, offset=place, digest=digest)
    assert texts(resumed) == ["3"]
    resumed.close()


def test_a_stream_partition_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "events" / "0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match=r"is a symbolic link that leaves .*; expected folders inside of it"):
        partition_folders(tmp_path / "events")
