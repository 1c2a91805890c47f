"""Which files a run of maintenance rewrites."""

import json
import random
from collections import Counter

import pyarrow as pa
import pytest

from cdc_pipeline.lake.checkpoint_rows import encoded
from cdc_pipeline.lake.decay import EVERYTHING, Optimization, WornFile, rewrite_plan
from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.lake.table_files import FILE_TYPE, TableFiles
from cdc_pipeline.settings.work import MaintenanceSettings

NEED = MaintenanceSettings(small_files=3, small_file_bytes=100, deleted_share=0.2, run_bytes=1_000)


def sized(*sizes: int, partition: str = "") -> list[WornFile]:
    values = (("day", partition),) if partition else ()
    return [WornFile(path=f"{partition}{size}", size_bytes=size, partition=values, rows=10) for size in sizes]


def large(path: str, size_bytes: int, deleted: int) -> WornFile:
    return WornFile(path=path, size_bytes=size_bytes, rows=100, deleted_rows=deleted)


@pytest.mark.parametrize(
    ("files", "groups", "left"),
    [
        pytest.param([], [], 0, id="nothing has decayed"),
        pytest.param(sized(1, 2), [], 0, id="too few small files"),
        pytest.param(sized(3, 1, 2), [["1", "2", "3"]], 0, id="enough small files"),
        pytest.param(sized(10, 11, 12, 99), [["10", "11", "12"]], 0, id="the last one holds more than all others"),
        pytest.param(
            sized(1, 2, 3, 20, 21), [["1", "2", "3"]], 0, id="too few of the larger ones"
        ),
        pytest.param(
            sized(1, 2, 3, 20, 21, 22), [["1", "2", "3"], ["20", "21", "22"]], 0, id="enough of the larger ones, too"
        ),
        pytest.param(sized(10, 11, 12, 33), [["10", "11", "12", "33"]], 0, id="the last one holds as much"),
        pytest.param(
            [*sized(1, 2, 3), large("98", 98, 20), large("99", 99, 19)], [["1", "2", "3", "98"]], 0,
            id="the last but one has many deleted rows",
        ),
        pytest.param([*sized(1), large("99", 99, 90)], [], 0, id="too few small files, deleted rows or not"),
        pytest.param(sized(1, 2, partition="a") + sized(1, 2, partition="b"), [], 0, id="few in each partition"),
        pytest.param(
            sized(1, 2, 3, 4, partition="a") + sized(1, 2, 3, partition="b"),
            [["a1", "a2", "a3", "a4"], ["b1", "b2", "b3"]],
            0,
            id="each partition for itself, that of most files first",
        ),
        pytest.param([large("x", 500, 19)], [], 0, id="too few deleted rows"),
        pytest.param([large("x", 500, 20)], [["x"]], 0, id="enough deleted rows"),
        pytest.param([WornFile(path="x", size_bytes=500, deleted_rows=9)], [], 0, id="a number of rows nobody knows"),
        pytest.param(
            [large("x", 500, 20), large("y", 400, 60), *sized(1, 2, 3)],
            [["1", "2", "3"], ["y"], ["x"]],
            0,
            id="small files first, then by the share of deleted rows",
        ),
        pytest.param([large("x", 600, 20), large("y", 600, 60)], [["y"]], 1, id="the rest waits for the next run"),
        pytest.param([large("x", 5_000, 20), large("y", 600, 30)], [["y"]], 1, id="what does not fit waits"),
        pytest.param([large("x", 5_000, 20)], [["x"]], 0, id="one file is taken whatever its size"),
        pytest.param(
            sized(*range(80, 92)), [[*map(str, range(80, 91))]], 1, id="as many small files as fit",
        ),
    ],
)  # fmt: skip
def test_a_run_rewrites_what_reading_suffers_from_most(
    files: list[WornFile], groups: list[list[str]], left: int
) -> None:
    plan = rewrite_plan(files, NEED)
    assert [[file.path for file in group] for group in plan.groups] == groups
    assert plan.left == left


def test_the_number_of_files_does_not_grow_with_that_of_claims() -> None:
    """Each claim inserts some rows and updates some of the last ones, so that merged files hold few deleted rows."""
    chance, need = random.Random(1), MaintenanceSettings(small_file_bytes=1 << 20)
    rows, dead, place, counts = dict[str, int](), Counter[str](), dict[int, str](), list[int]()
    for claim in range(1, 1_601):
        written = {claim * 10 - chance.randrange(200) for _ in range(90)} | {claim * 10 + new for new in range(10)}
        dead.update(place[row] for row in written if row in place)
        rows[f"claim-{claim}"] = len(written)
        place |= dict.fromkeys(written, f"claim-{claim}")
        if claim % need.small_files == 0:
            worn = [
                WornFile(path=path, size_bytes=rows[path], rows=rows[path], deleted_rows=dead[path]) for path in rows
            ]
            for number, group in enumerate(rewrite_plan(worn, need).groups):
                merged, old = f"merged-{claim}-{number}", {file.path for file in group}
                rows[merged] = sum(rows.pop(path) - dead.pop(path, 0) for path in old)
                place |= {row: merged for row, path in place.items() if path in old}
        counts.append(len(rows))
    assert max(counts) < 3 * need.small_files


def test_two_small_files_are_merged_even_if_they_are_more_than_a_run_may_rewrite() -> None:
    need = NEED.model_copy(update={"run_bytes": 1})
    plan = rewrite_plan(sized(5, 6, 7), need)
    assert ([[file.path for file in group] for group in plan.groups], plan.left) == ([["5", "6"]], 1)


def test_everything_rewrites_each_deleted_row_of_a_large_file() -> None:
    assert rewrite_plan([WornFile(path="x", size_bytes=1 << 30, rows=10**8, deleted_rows=1)], EVERYTHING).groups


def action(path: str, size: int, rows: int | None, deleted: int = 0) -> Action:
    stats = {} if rows is None else {"numRecords": rows}
    vector = {"storageType": "i", "pathOrInlineDv": "x", "cardinality": deleted}
    marked = {"deletionVector": vector} if deleted else {}
    return {"path": path, "partitionValues": {"p": None}, "size": size, "stats": json.dumps(stats), **marked}


def test_the_files_of_a_table_that_have_decayed_are_found_whether_they_are_old_or_new() -> None:
    known = [
        action("whole", 500, 100),
        action("small", 99, None),
        action("worn", 500, 100, 20),
        action("good", 500, 100, 19),
        action("gone", 1, 1),
        action("unknown", 500, None, 20),
    ]
    files = TableFiles([pa.array([encoded(FILE_TYPE, file) for file in known], FILE_TYPE)])
    files.follow([{"add": action("new-small", 5, 9)}, {"add": action("new-whole", 500, 9)}, {"remove": known[4]}])
    files.follow([{"add": action("whole", 500, 100, 90)}, {"remove": known[0]}])
    found = {file.path: file for file in files.worn(100, 0.2)}
    assert set(found) == {"small", "worn", "new-small", "whole"}
    assert (found["worn"].rows, found["worn"].deleted_rows, found["worn"].partition) == (100, 20, (("p", None),))


def test_what_a_run_did_is_told_in_words() -> None:
    assert str(Optimization()) == "no file needs it"
    assert str(Optimization(files_before=20, files_after=1, bytes_read=12_300_000)) == "20 files (12.3 MB) became 1"
    assert str(Optimization(files_before=2, files_after=1, left=7)).endswith("; 7 more wait for the next run")
