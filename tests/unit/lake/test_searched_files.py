"""A claim searches the files that may have its ids: few of them for near ids, and none too few for any ids."""

import io
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_pipeline.lake.checkpoint_rows import encoded
from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.lake.file_stats import delta_stats
from cdc_pipeline.lake.key_ranges import ranges_of
from cdc_pipeline.lake.lake_files import LakeFiles
from cdc_pipeline.lake.table_files import FILE_TYPE, TableFiles
from cdc_pipeline.lake.table_state import LakeTableState
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types import resolve
from tests.support.lake import table_of

UNSIGNED = "numeric(20,0)"
FIELDS = [{"name": "id", "type": "any", "nullable": True, "metadata": {}}]


def values(ids: Iterable[int], type_: str) -> pa.Array:
    arrow = resolve(type_).arrow
    return pa.array([Decimal(id_) for id_ in ids] if pa.types.is_decimal(arrow) else list(ids), arrow)


def file_of(path: str, ids: Iterable[int], type_: str) -> Action:
    content = io.BytesIO()
    pq.write_table(pa.table({"id": values(ids, type_)}), content, store_decimal_as_integer=True)
    stats = delta_stats(pq.read_metadata(content), ("id",))
    return {"add": {"path": path, "partitionValues": {}, "size": 1, "stats": stats}}


def as_spark(path: str, low: int, high: int) -> Action:
    """Spark writes bounds of any number of digits."""
    stats = json.dumps({"numRecords": 2, "minValues": {"id": low}, "maxValues": {"id": high}})
    return {"add": {"path": path, "partitionValues": {}, "size": 1, "stats": stats}}


def searched(folder: Path, type_: str, files: Sequence[Action], claim: Iterable[int]) -> list[str]:
    """Of files that a checkpoint has, and again of files that came since."""
    table = table_of(TableSchema(columns=(Column(name="id", type=type_),), key=("id",)))
    newer, store = TableFiles(), LocalObjectStore(folder)
    newer.follow(files)
    ranges = ranges_of(pa.chunked_array([values(claim, type_)]))
    found = []
    for known in (newer, TableFiles([pa.array([encoded(FILE_TYPE, file["add"]) for file in files], FILE_TYPE)])):
        state = LakeTableState(version=1, metadata={"schemaString": json.dumps({"fields": FIELDS})}, files=known)
        columns = (("id", resolve(type_).spark),)
        found.append(sorted(LakeFiles(store=store, table=table, state=state, columns=columns).candidates(ranges)))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("type_", ["int2", "int4", "int8", "numeric(5,0)", "numeric(18,0)", UNSIGNED, "numeric(38,0)"])
def test_whole_numbers_are_searched_where_they_may_be(tmp_path: Path, type_: str) -> None:
    files = [file_of(f"f{start}", range(start, start + 10), type_) for start in range(-100, 100, 10)]
    assert searched(tmp_path, type_, files, [33, 34]) == ["f30"]
    assert searched(tmp_path, type_, files, [-91, -90, 99]) == ["f-100", "f-90", "f90"]
    assert searched(tmp_path, type_, files, [100]) == []


def test_files_that_were_written_before_the_id_had_more_digits_are_found(tmp_path: Path) -> None:
    files = [
        *(file_of("int8", [5, 2**40], "int8"), file_of("short", [7, 9], "numeric(5,0)")),
        *(file_of("long", [8, 2**63 - 1], UNSIGNED), as_spark("spark", 6, 2**50), file_of("far", [-9], UNSIGNED)),
    ]
    assert searched(tmp_path, UNSIGNED, files, [8]) == ["int8", "long", "short", "spark"]
    assert searched(tmp_path, UNSIGNED, files, [5]) == ["int8"]
    assert searched(tmp_path, UNSIGNED, files, [2**63 - 1]) == ["long"]


def test_numbers_beyond_64_bits_hide_no_file(tmp_path: Path) -> None:
    files = [
        *(file_of("small", [1, 2], UNSIGNED), file_of("both", [3, 2**63], UNSIGNED), file_of("one", [3], UNSIGNED)),
        *(as_spark("spark's", 3, 2**64 - 1), as_spark("spark's low", -(2**63) - 1, 4)),
        *(file_of("great", [2**63, 2**64 - 1], UNSIGNED), file_of("low", [-(2**63) - 1, 4], UNSIGNED)),
    ]
    unknown = ["both", "great", "low", "spark's", "spark's low"]
    assert searched(tmp_path, UNSIGNED, files, [1]) == sorted(["small", *unknown])
    every = sorted(file["add"]["path"] for file in files)
    for claim in ([2**63], [2**64 - 1, 1], [-(2**63) - 1]):
        assert searched(tmp_path, UNSIGNED, files, claim) == every


@pytest.mark.parametrize("type_", ["numeric(9,2)", "date"])
def test_other_ids_are_searched_in_every_file(tmp_path: Path, type_: str) -> None:
    files = [file_of(f"f{number}", [number], type_) for number in range(3)]
    assert searched(tmp_path, type_, files, [1]) == ["f0", "f1", "f2"]
