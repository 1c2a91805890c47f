"""Every acceptance case comes out as it says, in the kernel and in the reference model, four ways."""

import json
from collections.abc import Callable
from random import Random

import pytest

from tests.support.acceptance_cases import Case, case_files, events_of, load_case
from tests.support.case_runs import (
    CaseRun,
    KernelRun,
    ModelRun,
    cut,
    ordered_rows,
    shuffled,
    slicings,
    transactions_of,
)
from tests.support.debezium_lines import debezium_lines, debezium_settings

SHUFFLES = 64
CASES = {path.stem.removeprefix("case_"): load_case(path) for path in case_files()}


def cases(wanted: Callable[[Case], bool]) -> pytest.MarkDecorator:
    found = {name: case for name, case in CASES.items() if wanted(case)}
    return pytest.mark.parametrize("case", found.values(), ids=list(found))


each_case = cases(lambda _case: True)
shuffled_case = cases(lambda case: case.shuffled)
unordered_case = cases(lambda case: not case.ordered)
both_ways = pytest.mark.parametrize("kind", ["kernel", "model"])


@each_case
@both_ways
def test_as_given(case: Case, kind: str) -> None:
    run = started(kind, case)
    transactions = transactions_of(case)
    for passed, claim in cut(transactions, range(1, len(transactions) + 1)):
        run.apply(claim)
        check(case, run, passed)
    check_the_end(case, run)


@each_case
@both_ways
def test_cut_anywhere(case: Case, kind: str) -> None:
    transactions = transactions_of(case)
    for ends in slicings(len(transactions)):
        run = started(kind, case)
        for passed, claim in cut(transactions, ends):
            run.apply(claim)
            check(case, run, passed)
        check_the_end(case, run)


@each_case
@both_ways
def test_everything_delivered_twice(case: Case, kind: str) -> None:
    # twice inside a claim; where there is an id, every claim again too
    has_ids = all(table.id for table in case.tables.values())
    transactions = transactions_of(case)
    for ends in slicings(len(transactions)):
        run = started(kind, case)
        for passed, claim in cut(transactions, ends):
            for _ in range(2 if has_ids else 1):
                run.apply([event for event in claim for _ in range(2)])
            check(case, run, passed)
        check_the_end(case, run)


@shuffled_case
@both_ways
def test_shuffled_across_partitions(case: Case, kind: str) -> None:
    for seed in range(SHUFFLES):
        run = started(kind, case)
        for claim in shuffled(case, Random(seed)):
            run.apply(claim)
        check_the_end(case, run)


@unordered_case
def test_the_whole_log_again_changes_nothing_where_order_is_not_asked_for(case: Case) -> None:
    run = KernelRun(case, tombstones=True)
    whole = [event for part in transactions_of(case) for event in part]
    run.apply(whole)
    assert run.ties == case.ties
    before = dict(run.keyed)
    run.apply(whole)
    assert run.keyed == before


@each_case
def test_it_says_how_it_ends(case: Case) -> None:
    assert set(case.expected[len(case.transactions)]) == set(case.tables)
    assert (case.mended is not None) == bool(case.replayed)


def test_a_file_is_named_after_its_case() -> None:
    assert all(name.startswith(f"{case.case.zfill(2)}_") for name, case in CASES.items())


@each_case
def test_it_can_be_written_as_debezium_writes_it(case: Case) -> None:
    settings = debezium_settings(case)
    lines = [json.loads(line) for part in debezium_lines(case).values() for line in part]
    assert {table["name"] for table in settings["tables"]} == {str(case.name_of(name)) for name in case.tables}
    envelopes = [line["value"] for line in lines if line["value"] is not None]
    halves = sum(change.move is not None for change in case.changes)
    more_tables = sum(len(change.truncate) - 1 for change in case.changes if change.truncate)
    assert len(envelopes) == len(case.changes) + halves + more_tables


def started(kind: str, case: Case) -> CaseRun:
    if kind == "model":
        return ModelRun(case)
    one_partition = len({event.partition for part in transactions_of(case) for event in part}) == 1
    return KernelRun(case, tombstones=not case.ordered or not one_partition or bool(case.replayed))


def check(case: Case, run: CaseRun, passed: int) -> None:
    for table, rows in case.expected.get(passed, {}).items():
        assert ordered_rows(run.rows(table)) == ordered_rows(rows)


def check_the_end(case: Case, run: CaseRun) -> None:
    """Also after the replay of what was quarantined, if the case has any."""
    check(case, run, len(case.transactions))
    if case.mended is not None:
        replay = [event for change in case.replayed for event in events_of(case, change)]
        run.apply(replay)
        (table,) = case.tables
        assert ordered_rows(run.rows(table)) == ordered_rows(case.mended)
