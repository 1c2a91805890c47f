"""Every acceptance case as Debezium's files: consumer, registered slices, worker and the fast lake, four ways."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import OnStep
from cdc_pipeline.wiring import Pipeline, utc_now
from tests.support.acceptance_cases import Case, Row, case_files, load_case
from tests.support.case_pipeline import Differences, apply, opened, quarantined, replay_misfits, tell, ties
from tests.support.delta_rows import seen
from tests.support.event_files import EventFolder
from tests.support.file_cases import WrittenCase, as_given, by_kind, every_slicing, shuffled, sliced, twice
from tests.support.memory_lake import MemoryLake
from tests.support.pipelines import set_up_and_consume
from tests.support.recordings import ORDER_40, PLAIN, WITH_SCHEMA, lay_out, recorded, shown, until_the_last_statement

MOST_SLICINGS = 3
MOST_SLICINGS_TWICE = 2
"""A few of each, through every part; one of them in `make test`. The kernel alone takes 64 (test_cases.py)."""
nightly = pytest.mark.nightly
CASES = {path.stem: case for path in case_files() if not (case := load_case(path)).not_from_files}


@pytest.mark.parametrize("source", [{}, {"slice_rows": 1}], ids=["one slice", "a slice per transaction"])
def test_as_given(source: Mapping[str, Any], store_url: str, tmp_path: Path) -> None:
    written = [as_given(name, case) for name, case in CASES.items()]
    for number, group in enumerate(by_kind(written)):
        with opened(group, tmp_path / f"kind_{number}", store_url, make_lake=make_lake, source=source) as pipeline:
            assert tell(pipeline, group, read) == {}
            kept = {each.name: quarantined(pipeline, each) for each in group}
            assert kept == {each.name: sum(bool(change.unfit) for change in each.case.changes) for each in group}
            assert {each.name: ties(pipeline, each) for each in group} == {each.name: each.case.ties for each in group}
            assert replay_misfits(pipeline, group, read) == {}


@pytest.mark.parametrize(
    ("way", "most", "number"),
    [
        (sliced, MOST_SLICINGS, 1),
        pytest.param(sliced, MOST_SLICINGS, 2, marks=nightly),
        pytest.param(twice, MOST_SLICINGS_TWICE, 0, marks=nightly),
        (twice, MOST_SLICINGS_TWICE, 1),
    ],
)
def test_cut_anywhere(
    way: Callable[[str, Case, tuple[int, ...]], WrittenCase], most: int, number: int, store_url: str, tmp_path: Path
) -> None:
    """As it is, and with everything delivered twice. The n-th slicing of all cases together, every other time with a
    new consumer for each chunk. The first is the whole log, which test_as_given has.
    """
    found = {name: every_slicing(case, most) for name, case in CASES.items()}
    written = [
        way(f"s{number}_{name}", CASES[name], ends[number]) for name, ends in found.items() if number < len(ends)
    ]
    check(written, store_url, tmp_path / f"s{number}", anew=bool(number % 2))


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=nightly)])
def test_shuffled_across_partitions(number: int, store_url: str, tmp_path: Path) -> None:
    chance = Random(number)
    written = [shuffled(f"s{number}_{name}", case, chance) for name, case in CASES.items() if case.shuffled]
    check(written, store_url, tmp_path / f"s{number}", anew=bool(number % 2))


@pytest.mark.parametrize(
    ("recording", "tables", "layout"),
    [
        ("postgres_plain", PLAIN, "one"),
        ("postgres_with_schema", WITH_SCHEMA, "recorded"),
        pytest.param("postgres_plain", PLAIN, "recorded", marks=nightly),
        pytest.param("postgres_with_schema", WITH_SCHEMA, "one", marks=nightly),
    ],
)
def test_what_debezium_recorded_ends_in_the_lake_as_the_server_did(
    recording: str, tables: tuple[dict[str, Any], ...], layout: str, store_url: str, tmp_path: Path
) -> None:
    """Transaction by transaction. tests/integration/files has it up to the slices."""
    events = EventFolder(folder=tmp_path, store_url=store_url, tables=tables, source={"slice_rows": 1})
    lay_out(events, until_the_last_statement(recorded(recording)), layout)
    with events.opened(make_lake=make_lake) as pipeline:
        set_up_and_consume(pipeline)
        orders, keyless = pipeline.table_names()
        apply(pipeline, (orders, keyless))
        assert shown(seen(read(pipeline, orders))) == [ORDER_40]
        assert seen(read(pipeline, keyless)) == []


def check(written: list[WrittenCase], store_url: str, folder: Path, *, anew: bool) -> None:
    differences: Differences = {}
    for number, group in enumerate(by_kind(written)):
        with opened(group, folder.parent / f"{folder.name}_{number}", store_url, make_lake=make_lake) as pipeline:
            differences |= tell(pipeline, group, read, anew=anew)
            differences |= replay_misfits(pipeline, group, read)
    assert differences == {}


def make_lake(objects: ObjectStore, on_step: OnStep) -> MemoryLake:
    return MemoryLake(store=objects, clock=utc_now, on_step=on_step)


def read(pipeline: Pipeline, table: TableName) -> list[Row]:
    assert isinstance(pipeline.lake, MemoryLake)
    return pipeline.lake.rows(pipeline.lake_table(table))
