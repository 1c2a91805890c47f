"""What snapshot tasks hand to each other: the JSON of every release is read as what it was written from."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.lake.protocol import DataFile
from cdc_pipeline.metadata_store.states import TaskKind
from snapshot.hand_offs import (
    CompactedFiles,
    SlotOrder,
    SnapshotFile,
    StagedFile,
    StagedFiles,
    StagedPartition,
    from_json,
    input_of,
    new_tasks,
    output_of,
    to_json,
)
from tests.support.snapshot_tasks import finished_task

WRITTEN: list[tuple[object, dict[str, Any]]] = [
    (SnapshotFile(snapshot_key="a/0.parquet", file_id="0"), {"snapshot_key": "a/0.parquet", "file_id": "0"}),
    (
        StagedFiles(files=(StagedFile(key="b", partition=(("month", None), ("day", "1")), rows=2, size_bytes=3),)),
        {"files": [{"key": "b", "partition": [["month", None], ["day", "1"]], "rows": 2, "size_bytes": 3}]},
    ),
    (
        StagedPartition(partition=(("month", "2024-01"),), staged_keys=("b", "c"), target_files=4),
        {"partition": [["month", "2024-01"]], "staged_keys": ["b", "c"], "target_files": 4},
    ),
    (
        CompactedFiles(
            files=(DataFile(key="d", size_bytes=1, rows=2, partition_values=(("month", None),), stats='{"a": 1}'),)
        ),
        {
            "files": [
                {
                    "key": "d",
                    "size_bytes": 1,
                    "rows": 2,
                    "partition_values": [["month", None]],
                    "stats": '{"a": 1}',
                }
            ]
        },
    ),
]
"""Hand-offs, and the JSON that the first release wrote for them."""
SINCE = datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
TEXTS = st.text(max_size=5)
PARTITIONS = st.lists(st.tuples(TEXTS, st.none() | TEXTS), max_size=2).map(tuple)
STAGED = st.builds(
    StagedFile, key=TEXTS, partition=PARTITIONS, rows=st.integers(0, 9), size_bytes=st.integers(0, 1 << 40)
)


@pytest.mark.parametrize(("hand_off", "document"), WRITTEN)
def test_a_hand_off_has_the_json_of_the_first_release_in_both_directions(
    hand_off: object, document: dict[str, Any]
) -> None:
    assert to_json(hand_off) == document
    assert output_of(finished_task(TaskKind.STAGE, document), type(hand_off)) == hand_off
    (task,) = new_tasks(TaskKind.COMPACT, [hand_off])
    assert input_of(finished_task(TaskKind.COMPACT, {}, given=dict(task.input)), type(hand_off)) == hand_off


@given(st.lists(STAGED, max_size=3).map(tuple))
def test_staged_files_survive_json(files: tuple[StagedFile, ...]) -> None:
    document = json.loads(json.dumps(to_json(StagedFiles(files=files))))
    assert output_of(finished_task(TaskKind.STAGE, document), StagedFiles).files == files


def test_a_value_with_nul_is_kept_in_json_that_the_metadata_store_can_hold() -> None:
    for text in ("\0", "a\0b\0", "between_nuls"):
        partition = StagedPartition(partition=(("note", text),), staged_keys=("b",), target_files=1)
        data = DataFile(key="d", size_bytes=1, rows=2, partition_values=(("note", text),), stats="{}")
        for hand_off in (partition, CompactedFiles(files=(data,))):
            document = to_json(hand_off)
            assert "\\u0000" not in json.dumps(document)
            assert from_json(type(hand_off), document) == hand_off


@pytest.mark.parametrize("document", [{}, {"files": [{"key": "a"}]}, {"files": "a"}])
def test_a_hand_off_that_cannot_be_read_names_its_task_and_the_remedy(document: dict[str, Any]) -> None:
    with pytest.raises(SnapshotError, match="stage task 7 of snapshot first holds no StagedFiles") as refused:
        output_of(finished_task(TaskKind.STAGE, document, ordinal=7), StagedFiles)
    assert "cdc snapshot TABLE" in (refused.value.remedy or "")


def test_tasks_are_numbered_in_the_order_of_their_inputs() -> None:
    files = [SnapshotFile(snapshot_key=name, file_id=name) for name in "abc"]
    assert [(task.ordinal, task.input["file_id"]) for task in new_tasks(TaskKind.STAGE, files)] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
    ]


@pytest.mark.parametrize("since", ["2024-01-02T03:04:05.000678+00:00", "2024-01-02T03:04:05.000678Z"])
def test_an_order_for_a_worker_slot_survives_json(since: str) -> None:
    order = SlotOrder(chosen=("a.b.c",), since=SINCE, slot=2)
    assert from_json(SlotOrder, json.loads(json.dumps(to_json(order)))) == order
    assert from_json(SlotOrder, {"chosen": ["a.b.c"], "since": since, "slot": 2}) == order
