"""Every acceptance case as Debezium's files on Spark and Delta, and what the real Debezium recorded.

Cases whose tables are alike share a table, each with its own ids, so that they share the fixed cost of Spark. Each is
written as given, and once more in two claims. `make test` has the cases over the fast lake (test_files.py), and random
logs over Spark (tests/property/test_spark_merge.py).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.wiring import Pipeline
from tests.support.acceptance_cases import Case, case_files, load_case
from tests.support.case_pipeline import apply, opened, replay_misfits, tell, ties
from tests.support.delta_rows import seen
from tests.support.event_files import EventFolder
from tests.support.file_cases import WrittenCase, as_given, by_kind, sliced, widened
from tests.support.pipelines import opened_pipeline, set_up_and_consume, stored_rows
from tests.support.recordings import ORDER_40, PLAIN, WITH_SCHEMA, lay_out, recorded, shown, until_the_last_statement

CASES = {path.stem: case for path in case_files() if not (case := load_case(path)).not_from_files}
AGAIN = "case_15_snapshot_delivered_again"
ALONE = {"case_06_bag_and_truncate", AGAIN}
"""The one has no id that would tell its rows from another's, the other shows which files a claim leaves alone."""
TOGETHER = (
    (
        "case_01_chain_of_key_changes",
        "case_02_absent_columns_travel_along_a_chain",
        "case_02_chain_on_a_row_of_the_table",
        "case_02_swap_over_a_free_id",
        "case_17_replayed_after_the_fix",
        "case_29_unchanged_texts_of_many_rows",
        "case_31_large_values_come_and_go",
        "case_39f_the_later_commit_wins",
    ),
    (
        "case_10_employees_in_any_order",
        "case_29_partial_images_in_any_order",
        "case_39a_snapshot_image_with_a_later_clock",
    ),
)
"""Over one table with the columns of all: the first of each id is a whole row, so that more can be left out."""


@pytest.mark.nightly
def test_every_case_as_given_and_in_two_claims(store_url: str, spark_url: str, tmp_path: Path) -> None:
    for number, group in enumerate(by_kind(told_together())):
        with opened(group, tmp_path / f"kind_{number}", store_url, spark_url=spark_url) as pipeline:
            assert tell(pipeline, group, stored_rows) == {}
            for each in group:
                shared = [other.case for other in group if other.tables() == each.tables()]
                assert bool(ties(pipeline, each)) == any(case.ties for case in shared)
            assert replay_misfits(pipeline, group, stored_rows) == {}
            for each in group:
                if each.name == f"cut_{AGAIN}":
                    assert files_of(pipeline, each, 2) == files_of(pipeline, each, 3)


@pytest.mark.parametrize(
    ("recording", "tables", "layout"),
    [
        pytest.param("postgres_plain", PLAIN, "one", marks=pytest.mark.nightly),
        ("postgres_with_schema", WITH_SCHEMA, "recorded"),
    ],
)
def test_the_recording_ends_in_the_lake_as_the_server_did(
    recording: str, tables: tuple[dict[str, Any], ...], layout: str, store_url: str, spark_url: str, tmp_path: Path
) -> None:
    events = EventFolder(folder=tmp_path, store_url=store_url, tables=tables)
    lay_out(events, until_the_last_statement(recorded(recording)), layout)
    with opened_pipeline(events.settings, store_url=store_url, spark_url=spark_url) as pipeline:
        set_up_and_consume(pipeline)
        orders, keyless = pipeline.table_names()
        apply(pipeline, (orders, keyless))
        assert shown(seen(stored_rows(pipeline, orders))) == [ORDER_40]
        assert seen(stored_rows(pipeline, keyless)) == []


def files_of(pipeline: Pipeline, written: WrittenCase, version: int) -> list[str]:
    (table,) = written.tables()
    return sorted(file["path"] for file in DeltaLog(pipeline.objects, lake_key(table)).active_files(version).values())


def told_together() -> Iterator[WrittenCase]:
    """In two claims first: should the other one truncate, it does so before what comes in the second claim."""
    likes: dict[str, int] = {}
    for name, case in _alike(CASES).items():
        number = likes.setdefault(_shape(name, case), len(likes))
        if name in ALONE:
            yield sliced(f"cut_{name}", case, _two_claims(name, case))
            if name != AGAIN:
                yield as_given(f"given_{name}", case)
        else:
            shift = 2 * list(CASES).index(name)
            yield sliced(f"like_{number}", case, _two_claims(name, case), shift=shift)
            yield as_given(f"like_{number}", case, shift=shift + 1)


def _alike(cases: dict[str, Case]) -> dict[str, Case]:
    found = dict(cases)
    for names in TOGETHER:
        tables = [table for name in names for table in cases[name].tables.values()]
        columns = {name: type_ for table in tables for name, type_ in table.columns.items()}
        found |= {name: widened(cases[name], "rows", columns) for name in names}
    return found


def _shape(name: str, case: Case) -> str:
    """Equal for cases that can share their tables. Those without key changes can be merged the fast way."""
    alone = name if any(change.truncate for change in case.changes) else ""
    moves = any(change.move is not None for change in case.changes) and "rows" not in case.tables
    spread = {change.partition for change in case.changes} if case.ordered else set()
    return f"{case.ordered} {case.sequence_by} {spread} {alone} {moves} {case.tables}"


def _two_claims(name: str, case: Case) -> tuple[int, ...]:
    """Behind the truncate, if there is one; before what is delivered again; else in the middle."""
    parts = case.transactions
    if name == AGAIN:
        return (4, len(parts))
    place = next((number for number, part in enumerate(parts, 1) if part[0].truncate), (len(parts) + 1) // 2)
    return (place, len(parts))
