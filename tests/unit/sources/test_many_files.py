"""Readers of files that have read many of them."""

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.settings.change_files import ChangeFilesSource, CsvSettings
from cdc_pipeline.sources.files.listed_files import ListedFiles
from cdc_pipeline.sources.files.partition_files import LINE_BITS, PartitionFiles
from cdc_pipeline.sources.files.record_formats import FileLayout
from cdc_pipeline.steps import no_step

FILES, TIMES = 200_000, 300
MOST_SECONDS = 1.0
"""Of the processor: other tests run beside this one."""


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


def after_files(
    kind: type[PartitionFiles | ListedFiles],
    folder: Path,
    names: Mapping[int, str],
    layouts: Mapping[str, FileLayout] | None = None,
) -> PartitionFiles | ListedFiles:
    """A reader that has read the last of these files to its end. Files before it are no longer there."""
    offset, path = len(names) << LINE_BITS, str(folder)
    if kind is PartitionFiles:
        (folder / names[len(names)]).touch()
        return PartitionFiles(folder=folder, offset=offset, begun=names, begin=lambda _: 0, on_step=no_step)
    return ListedFiles(
        objects=LocalObjectStore(folder),
        layouts=layouts or {},
        settings=ChangeFilesSource.model_validate({"kind": "change_files", "path": path, "format": "upserts"}),
        offset=offset,
        begun=names,
        begin=lambda _: 0,
        on_step=no_step,
        digest=" whole",
    )
