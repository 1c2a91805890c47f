"""The state of a table is that of its log, however many commits it is behind, and whoever wrote them."""

import json
import tracemalloc
from pathlib import Path

import pytest

from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.protocol import KeyRange
from cdc_pipeline.lake.table_state import LakeTableState, LakeTableStates
from cdc_pipeline.object_store.local import LocalObjectStore

TABLE = "datalake/shop/public/people"


def add(path: str, low: object = None, high: object = None, vector: str = "") -> Action:
    stats = {"numRecords": 9} | ({} if low is None else {"minValues": {"id": low}, "maxValues": {"id": high}})
    marked = {"deletionVector": {"storageType": "u", "pathOrInlineDv": vector}} if vector else {}
    return {"add": {"path": path, "partitionValues": {}, "size": 1, "stats": json.dumps(stats), **marked}}


def remove(path: str, vector: str = "") -> Action:
    marked = {"deletionVector": {"storageType": "u", "pathOrInlineDv": vector}} if vector else {}
    return {"remove": {"path": path, **marked}}


def info(name: str) -> Action:
    return {"commitInfo": {"txnId": name}}


def created(log: DeltaLog, name: str, *actions: Action) -> None:
    first: list[Action] = [{"metaData": {"id": name}}, {"protocol": {"minWriterVersion": 7}}]
    log.append(0, [info(name), *first, *actions])


@pytest.fixture
def log(tmp_path: Path) -> DeltaLog:
    return DeltaLog(LocalObjectStore(tmp_path), TABLE)


def test_newer_commits_bring_the_state_up_to_date(log: DeltaLog) -> None:
    created(log, "one", add("a"), add("b"))
    states = LakeTableStates()
    assert set(states.at(log, 0).files.paths()) == {"a", "b"}
    log.append(1, [info("1"), remove("a"), add("c")])
    log.append(2, [info("2"), add("b", vector="v"), remove("b")])
    log.append(3, [info("3"), {"metaData": {"id": "one", "name": "x"}}])
    state = states.at(log, 3)
    assert set(state.files.paths()) == {"b", "c"}
    held = state.files.get("b")
    assert held is not None
    assert (held["deletionVector"]["pathOrInlineDv"], state.metadata["name"]) == ("v", "x")
    again = LakeTableStates().at(log, 3)
    assert (set(again.files.paths()), again.metadata) == ({"b", "c"}, state.metadata)


def test_a_table_that_was_replaced_is_read_again(log: DeltaLog, tmp_path: Path) -> None:
    created(log, "one", add("a"))
    states = LakeTableStates()
    states.at(log, 0)
    (tmp_path / log.folder / f"{0:020d}.json").unlink()
    created(log, "two", add("b"))
    log.append(1, [info("1"), add("c")])
    assert set(states.at(log, 1).files.paths()) == {"b", "c"}


def test_files_of_newer_commits_count_as_memory_until_they_are_columns(log: DeltaLog) -> None:
    created(log, "one", *(add(f"old-{number}", number, number) for number in range(100)))
    files = LakeTableStates().at(log, 0).files
    before = files.size_bytes
    tracemalloc.start()
    files.follow([json.loads(json.dumps(add(f"new-{number}", number, number))) for number in range(1_000)])
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / 2 < files.size_bytes - before < 4 * used
    files.follow(add(f"last-{number}") for number in range(4_000))
    assert len(files) == 5_100
    assert files.size_bytes < 5_100 * 400


def test_files_are_spared_by_their_bounds(log: DeltaLog) -> None:
    created(log, "one", add("a", 1, 10), add("b", 11, 20), add("c", 30, 40), add("d"), add("e", "1", "2"))
    state: LakeTableState = LakeTableStates().at(log, 0)
    assert state.files.within("id", (KeyRange(35, 35), KeyRange(2, 3))) == ["a", "c", "d", "e"]
    assert state.files.within("id", (KeyRange(20, 29),)) == ["b", "d", "e"]
    assert state.files.within("id", (KeyRange(-5, 99),)) == ["a", "b", "c", "d", "e"]
    assert state.files.within("id", (KeyRange(21, 29), KeyRange(41, 50))) == ["d", "e"]
    state.follow([remove("a"), add("a", 100, 100)], 1)
    assert "a" not in state.files.within("id", (KeyRange(2, 3),))
