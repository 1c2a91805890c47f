"""A search by bounds finds what a look at each file finds, however the files came and went."""

import json
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from cdc_pipeline.lake.checkpoint_rows import encoded
from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.lake.file_bounds import BoundsIndex
from cdc_pipeline.lake.protocol import KeyRange
from cdc_pipeline.lake.table_files import FILE_TYPE, TableFiles

COLUMN, END = "full, name", "end"
WIDTH = 10_000


def key(kind: type, value: int) -> Any:
    return value if kind is int else f"{value:06d}é"


def file_of(kind: type, path: str, chance: Random) -> Action:
    """One in ten has no bounds, or bounds of another kind."""
    low = chance.randrange(WIDTH)
    high = low + chance.choice((0, 5, 50, WIDTH))
    ends: dict[str, Any] = {"minValues": {"other": 1, COLUMN: key(kind, low)}, "maxValues": {COLUMN: key(kind, high)}}
    odd: list[dict[str, Any]] = [
        {},
        {"minValues": None},
        ends | {"maxValues": {COLUMN: 1.5}},
        {"minValues": {COLUMN: key(kind, low)}},
    ]
    stats = json.dumps({"numRecords": 3} | (ends if chance.random() < 0.9 else chance.choice(odd)))
    return {"path": path, "partitionValues": {"p": None}, "size": 1, "stats": stats, "tags": {"a": "b"}}


def bounds(kind: type, file: Action) -> tuple[Any, Any] | None:
    found = json.loads(file["stats"])
    low, high = ((found.get(name) or {}).get(COLUMN) for name in ("minValues", "maxValues"))
    return (low, high) if type(low) is type(high) is kind else None


def matching(kind: type, files: dict[str, Action], ranges: list[KeyRange]) -> list[str]:
    return sorted(
        path
        for path, file in files.items()
        if (found := bounds(kind, file)) is None or any(found[0] <= high and low <= found[1] for low, high in ranges)
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", [int, str])
def test_a_search_finds_what_a_look_at_each_file_finds(kind: type, seed: int) -> None:
    chance = Random(seed)
    known = {path: file_of(kind, path, chance) for path in (f"base-{number}" for number in range(1_100))}
    files = TableFiles([pa.array([encoded(FILE_TYPE, file) for file in known.values()], FILE_TYPE)])
    for round_ in range(12):
        lows = [chance.randrange(-10, WIDTH + 100) for _ in range(chance.choice((1, 3, 20)))]
        ranges = [KeyRange(key(kind, low), key(kind, low + chance.choice((0, 30, 900)))) for low in lows]
        if round_ % 3 == 2 or not round_:
            assert sorted(files.within(COLUMN, ranges)) == matching(kind, known, ranges)
        actions: list[Action] = []
        for path in chance.sample(sorted(known), 40):
            marked = {**known[path], "deletionVector": {"storageType": "i", "pathOrInlineDv": f"{round_}"}}
            gone = {"remove": {name: known[path][name] for name in ("path", "deletionVector") if name in known[path]}}
            if chance.random() < 0.5:
                actions += [{"add": marked}, gone]
                known[path] = marked
            else:
                actions.append(gone)
                del known[path]
        for path in (f"new-{round_}-{number}" for number in range(400)):
            known[path] = file_of(kind, path, chance)
            actions.append({"add": known[path]})
        files.follow([{"commitInfo": {}}, *actions])
        assert len(files) == len(known)
    assert sorted(files.paths()) == sorted(known)
    for path in chance.sample(sorted(known), 50):
        assert files.get(path) == known[path]
    assert files.get("base-x") is None
    assert not files.has_files_elsewhere


@pytest.mark.parametrize("kind", [int, str])
def test_files_of_ids_whose_periods_ended_long_ago_are_left_out(kind: type) -> None:
    """One in three goes on, and has no bounds."""
    chance = Random(3)
    known = {path: file_of(kind, path, chance) for path in (f"file-{number}" for number in range(1_400))}
    ends = dict[str, str]()
    for path, file in known.items():
        stats = json.loads(file["stats"])
        if chance.random() < 0.67 and stats.get("minValues") and stats.get("maxValues"):
            ends[path] = f"{chance.randrange(WIDTH):06d}"
            stats["minValues"][END], stats["maxValues"][END] = "", ends[path]
            file["stats"] = json.dumps(stats)
    older, newer = list(known.values())[:1_100], list(known.values())[1_100:]
    files = TableFiles([pa.array([encoded(FILE_TYPE, file) for file in older], FILE_TYPE)])
    files.follow([{"add": file} for file in newer])
    files.follow([{"remove": {"path": path}} for path in chance.sample(sorted(known), 100) if known.pop(path)])
    for low in range(0, WIDTH, 1_000):
        ranges, least = [KeyRange(key(kind, low), key(kind, low + 900))], f"{chance.randrange(WIDTH):06d}"
        wanted = [path for path in matching(kind, known, ranges) if ends.get(path, least) >= least]
        assert sorted(files.within(COLUMN, ranges, (END, least))) == wanted
    assert TableFiles().within(COLUMN, [KeyRange(1, 2)], (END, "")) == []


def test_a_column_that_gets_another_type_is_searched_by_its_new_values() -> None:
    chance = Random(1)
    files = TableFiles([pa.array([encoded(FILE_TYPE, file_of(int, "numbers", chance))], FILE_TYPE)])
    assert files.within(COLUMN, [KeyRange(-2, -1)]) == []
    texts = {"numRecords": 1, "minValues": {COLUMN: "b"}, "maxValues": {COLUMN: "d"}}
    files.follow([{"remove": {"path": "numbers"}}, {"add": {"path": "texts", "stats": json.dumps(texts)}}])
    assert files.within(COLUMN, [KeyRange("c", "c")]) == ["texts"]
    assert files.within(COLUMN, [KeyRange("e", "f")]) == []


@pytest.mark.parametrize("column", ['q"q', "back\\slash", "new\nline", "\x01", "été"])
def test_a_column_of_any_name_is_searched(column: str) -> None:
    files = TableFiles()
    for path, ends in {"a": {column: 1}, "b": {column: 7}, "none": {}, "null": None}.items():
        stats = json.dumps({"numRecords": 1, "minValues": ends, "maxValues": ends})
        files.follow([{"add": {"path": path, "stats": stats}}])
    files.follow([{"add": {"path": "damaged", "stats": "[{"}}, {"add": {"path": "odd", "stats": "[]"}}])
    assert files.within(column, [KeyRange(1, 2)]) == ["a", "none", "null", "damaged", "odd"]


@pytest.mark.parametrize("path", ["/data/x.parquet", "s3://bucket/x.parquet", "file:/x.parquet"])
def test_a_file_elsewhere_is_noticed(path: str) -> None:
    files = TableFiles()
    files.follow([{"add": {"path": "x=1:2/in-the-folder.parquet"}}])
    assert not files.has_files_elsewhere
    files.follow([{"add": {"path": path}}])
    assert files.has_files_elsewhere
    assert TableFiles([pa.array([{"path": path}], FILE_TYPE)]).has_files_elsewhere


def test_an_empty_table_has_no_files() -> None:
    assert TableFiles().within("id", [KeyRange(1, 2)]) == []
    assert list(BoundsIndex([], int).within([(1, 2)])) == []
