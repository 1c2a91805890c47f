"""Staged files are compacted per data partition, into as many files as their bytes ask for."""

from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.metadata_store.snapshots.records import SnapshotTask
from cdc_pipeline.metadata_store.states import TaskKind
from snapshot.staging_to_lake import plan_compaction
from tests.support.snapshot_tasks import finished_task

TARGET = 1000
PARTITIONS = st.sampled_from([None, "2024-01", "2024-02"])
FILES = st.lists(st.tuples(PARTITIONS, st.integers(1, 3 * TARGET)), max_size=4)


def staged(tasks: list[list[tuple[str | None, int]]]) -> list[SnapshotTask]:
    return [
        finished_task(
            TaskKind.STAGE,
            {
                "files": [
                    {"key": f"{ordinal}/{place}", "partition": [["month", month]], "rows": 1, "size_bytes": size}
                    for place, (month, size) in enumerate(files)
                ]
            },
            ordinal=ordinal,
        )
        for ordinal, files in enumerate(tasks)
    ]


@given(st.lists(FILES, max_size=5))
def test_every_staged_file_is_in_the_one_task_of_its_partition(tasks: list[list[tuple[str | None, int]]]) -> None:
    plan = plan_compaction(staged(tasks), TARGET)
    expected: dict[str | None, list[str]] = {}
    for ordinal, files in enumerate(tasks):
        for place, (month, _) in enumerate(files):
            expected.setdefault(month, []).append(f"{ordinal}/{place}")
    assert {task.input["partition"][0][1]: task.input["staged_keys"] for task in plan} == expected
    assert [task.ordinal for task in plan] == list(range(len(expected)))
    assert all(task.kind is TaskKind.COMPACT for task in plan)


@given(st.lists(FILES, max_size=5))
def test_a_partition_becomes_as_many_files_as_its_bytes_hold_the_target_rounded_up(
    tasks: list[list[tuple[str | None, int]]],
) -> None:
    for task in plan_compaction(staged(tasks), TARGET):
        month = task.input["partition"][0][1]
        size = sum(size for files in tasks for found, size in files if found == month)
        assert (task.input["target_files"] - 1) * TARGET < size <= task.input["target_files"] * TARGET


@given(st.lists(FILES, max_size=5))
def test_the_plan_is_the_same_each_time(tasks: list[list[tuple[str | None, int]]]) -> None:
    assert plan_compaction(staged(tasks), TARGET) == plan_compaction(staged(tasks), TARGET)


def test_an_empty_table_has_nothing_to_compact() -> None:
    assert plan_compaction(staged([[], []]), TARGET) == []
