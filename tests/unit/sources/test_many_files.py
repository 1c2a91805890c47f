"""Readers of files that have read many of them."""

import gzip
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import BinaryIO

import pytest

from cdc_pipeline.errors import SourceError
from cdc_pipeline.object_store import ObjectInfo
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.settings.change_files import ChangeFilesSource, CsvSettings
from cdc_pipeline.sources.files.listed_files import LOOK_BACK_FILES, ListedFiles
from cdc_pipeline.sources.files.partition_files import LINE_BITS, PartitionFiles
from cdc_pipeline.sources.files.record_formats import FileLayout
from cdc_pipeline.sources.files.refused_files import refused_file
from cdc_pipeline.steps import no_step

FILES, TIMES = 200_000, 300
MOST_SECONDS = 1.0
"""Of the processor: other tests run beside this one."""
LAYOUTS = {"t": FileLayout(csv=CsvSettings())}
BEGUN = {number: f"t/m{number:04}.jsonl" for number in range(1, 601)}


@pytest.mark.parametrize("kind", [PartitionFiles, ListedFiles])
def test_what_a_cut_and_a_look_cost_does_not_grow_with_the_files_that_were_read(
    kind: type[PartitionFiles | ListedFiles], tmp_path: Path
) -> None:
    """One that goes over all names takes at least ten milliseconds."""
    names = {number: f"{number:09}.jsonl" for number in range(1, FILES + 1)}
    with closing(after_files(kind, tmp_path, names)) as files:
        last = files.offset
        files.next_lines(1)
        before = time.process_time()
        for _ in range(TIMES):
            assert files.begun_between(last - (1 << LINE_BITS), last) == {FILES: names[FILES]}
            assert files.next_lines(1) == []
        assert time.process_time() - before < MOST_SECONDS


def test_what_it_costs_to_open_many_files_grows_with_their_number_alone(tmp_path: Path) -> None:
    """One that moves all names for each takes more than ten times as long; so does one that asks every folder."""
    folders = [f"table{number:03}" for number in range(200)]
    for names in (
        [f"t/{number:09}.jsonl" for number in range(FILES)],
        [f"{folder}/1.jsonl" for folder in folders] * 99,
    ):
        before = time.process_time()
        layouts = dict.fromkeys(("t", *folders), FileLayout(csv=CsvSettings()))
        with closing(after_files(ListedFiles, tmp_path, dict(enumerate(names, 1)), layouts)) as files:
            assert files.next_lines(1) == []
        assert time.process_time() - before < 3 * MOST_SECONDS


def test_what_files_and_looks_cost_does_not_grow_with_those_that_a_folder_keeps(tmp_path: Path) -> None:
    """One that lists the folder for each takes more than ten times as long."""
    number = 2_000
    write(tmp_path, [f"{each:05}.jsonl" for each in range(number)])
    os.utime(tmp_path, (0, 0))
    before = time.process_time()
    with closing(after_files(PartitionFiles, tmp_path, {})) as files:
        assert len(files.next_lines(1 << 20)) == number
        for _ in range(TIMES * 5):
            assert files.next_lines(1, fresh=False) == []
    assert time.process_time() - before < 3 * MOST_SECONDS


def test_a_file_that_comes_before_those_that_wait_is_read_before_them(tmp_path: Path) -> None:
    names = write(tmp_path, ["1.jsonl", "2.jsonl", "4.jsonl"])
    os.utime(tmp_path, (0, 0))
    with closing(after_files(PartitionFiles, tmp_path, {})) as files:
        read = [line.file for _ in range(2) for line in files.next_lines(1)]
        write(tmp_path, ["3.jsonl"])
        read += [line.file for _ in range(3) for line in files.next_lines(1)]
        assert read == [*names[:2], "3.jsonl", names[2]]
        write(tmp_path, ["0.jsonl"])
        with pytest.raises(SourceError, match=r"0\.jsonl came after 4\.jsonl was begun"):
            files.next_lines(1)


def test_files_that_come_late_are_all_read_however_many_they_are(tmp_path: Path) -> None:
    late = write(tmp_path, [f"t/a{number:04}.jsonl" for number in range(2_100)])
    with closing(after_files(ListedFiles, tmp_path, BEGUN, LAYOUTS, order_by=["id"])) as files:
        assert [line.file for line in files.next_lines(1 << 20)] == late


def test_a_late_file_that_is_not_complete_at_the_first_look_is_read_once_it_is(tmp_path: Path) -> None:
    late, new = write(tmp_path, ["t/a.jsonl", "t/z.jsonl"])
    write(tmp_path, [f"{new}.done"])
    with closing(after_files(ListedFiles, tmp_path, BEGUN, LAYOUTS, order_by=["id"], complete="marked")) as files:
        assert [line.file for line in files.next_lines(1 << 20)] == [new]
        assert files.next_lines(1 << 20, fresh=True) == []
        write(tmp_path, [f"{late}.done"])
        assert [line.file for line in files.next_lines(1 << 20, fresh=True)] == [late]


def test_a_file_that_never_completes_makes_no_look_list_the_files_that_were_read_since(tmp_path: Path) -> None:
    late, gone, *names = write(
        tmp_path, ["t/a.jsonl", "t/b.jsonl", *(f"t/m{number:04}.jsonl" for number in range(700, 2_200))]
    )
    write(tmp_path, [f"{name}.done" for name in names])
    objects = CountedStore(tmp_path)
    settings: dict[str, object] = {"order_by": ["id"], "complete": "marked"}
    with closing(after_files(ListedFiles, tmp_path, BEGUN, LAYOUTS, objects=objects, **settings)) as files:
        assert [line.file for line in files.next_lines(1 << 20)] == names
        objects.calls.clear()
        assert files.next_lines(1, fresh=True) == []
        assert objects.calls["listed"] <= 2 * (LOOK_BACK_FILES + 1), "each file and its marker"
        write(tmp_path, [f"{late}.done"])
        (tmp_path / gone).unlink()
        assert [line.file for _ in range(2) for line in files.next_lines(1, fresh=True)] == [late]


class CountedStore(LocalObjectStore):
    """Counts how often a folder was listed, and a file was copied; and the names that were listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls = Counter[str]()

    def list_prefix(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        self.calls[prefix] += 1
        for found in super().list_prefix(prefix, after):
            self.calls["listed"] += 1
            yield found

    def copy_to(self, key: str, sink: BinaryIO) -> int:
        self.calls[key] += 1
        return super().copy_to(key, sink)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_with_nothing_to_read_is_looked_at_again_before_the_end_alone(tmp_path: Path, *, fresh: bool) -> None:
    """A stopped one, too. Without `fresh` it rests."""
    busy = write(tmp_path, [f"t/{number:02}.jsonl" for number in range(50)])
    damaged = "bad/1.jsonl.gz"
    write(tmp_path, ["idle/1.jsonl", damaged])
    objects = CountedStore(tmp_path)
    layouts = dict.fromkeys(("t", "idle", "bad"), FileLayout(csv=CsvSettings()))
    with closing(after_files(ListedFiles, tmp_path, {}, layouts, objects=objects)) as files:
        lines = files.next_lines(1 << 20, fresh=fresh)
        assert sorted(line.file for line in lines) == ["idle/1.jsonl", *busy]
        assert objects.calls[damaged] == objects.calls["idle"] - 1 == 1 + fresh
        assert objects.calls["t"] <= 3
        late = write(tmp_path, ["idle/2.jsonl", "idle/3.jsonl"])
        assert files.next_lines(1, fresh=False) == []
        assert [line.file for line in (*files.next_lines(1, fresh=True), *files.next_lines(1))] == late


def test_a_large_file_that_cannot_be_read_is_not_copied_again_until_it_is_replaced(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"id": 1}\n' * 1_000_000) * 30
    bad, good = write(tmp_path, ["bad/1.jsonl.gz", "good/1.jsonl"])
    (tmp_path / bad).write_bytes(whole[:-1])
    objects, layouts = CountedStore(tmp_path), dict.fromkeys(("bad", "good"), FileLayout(csv=CsvSettings()))
    with closing(after_files(ListedFiles, tmp_path, {}, layouts, objects=objects, list_every="1s")) as files:
        assert [line.file for line in files.next_lines(1, fresh=True)] == [good]
        for _ in range(10):
            assert files.next_lines(1, fresh=True) == []
        assert objects.calls[bad] == 1
        with pytest.raises(SourceError, match=f"the file {bad} cannot be read"):
            files.check()
        (tmp_path / bad).write_bytes(whole)
        assert [line.file for line in files.next_lines(1, fresh=True)] == [bad]
        files.check()


def test_a_file_whose_try_took_hours_is_tried_again_after_half_an_hour(tmp_path: Path) -> None:
    """A disk may have been full, and have room again."""
    (bad,) = write(tmp_path, ["bad/1.jsonl"])
    now = time.monotonic()
    file = refused_file(LocalObjectStore(tmp_path), bad, now - 7_200, timedelta(seconds=30))
    assert file is not None
    assert file.again - now == pytest.approx(1_800, abs=60)


def test_files_before_one_whose_name_says_no_format_are_read(tmp_path: Path) -> None:
    before, _, _ = write(tmp_path, ["t/1.jsonl", "t/2.text", "t/3.jsonl"])
    with closing(after_files(ListedFiles, tmp_path, {}, LAYOUTS)) as files:
        assert [line.file for line in files.next_lines(1 << 20)] == [before]
        with pytest.raises(SourceError, match="says no format"):
            files.check()


def write(folder: Path, names: Sequence[str]) -> Sequence[str]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"id": 1}\n')
    return names


def after_files(
    kind: type[PartitionFiles | ListedFiles],
    folder: Path,
    names: Mapping[int, str],
    layouts: Mapping[str, FileLayout] | None = None,
    objects: LocalObjectStore | None = None,
    **more: object,
) -> PartitionFiles | ListedFiles:
    """A reader that has read the last of these files to its end. Files before it are no longer there."""
    offset, path, numbers = len(names) << LINE_BITS, str(folder), count(len(names) + 1)
    if kind is PartitionFiles:
        for name in list(names.values())[-1:]:
            (folder / name).touch()
        return PartitionFiles(folder=folder, offset=offset, begun=names, begin=lambda _: next(numbers), on_step=no_step)
    return ListedFiles(
        objects=objects or LocalObjectStore(folder),
        layouts=layouts or {},
        settings=ChangeFilesSource.model_validate({"kind": "change_files", "path": path, "format": "upserts", **more}),
        offset=offset,
        begun=names,
        begin=lambda _: next(numbers),
        on_step=no_step,
        digest=" whole",
    )
