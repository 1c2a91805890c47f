"""Lines of a stream partition, put together by transaction and given when they are whole."""

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from cdc_pipeline.sources.debezium.partition import MOST_BYTES, Group, PartitionLines
from cdc_pipeline.sources.files.partition_files import PartitionFiles
from cdc_pipeline.steps import no_step


@pytest.fixture
def lines(tmp_path: Path) -> PartitionLines:
    files = PartitionFiles(folder=tmp_path, offset=0, begun={}, begin=lambda _: 1, on_step=no_step)
    return PartitionLines(files)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., None]:
    def append(*events: tuple[str, int | None] | None, padding: int = 0) -> None:
        with (tmp_path / "a.jsonl").open("a", encoding="utf-8") as file:
            for event in events:
                line = event and {"op": event[0], "source": {"txId": event[1]}, "padding": "x" * padding}
                file.write(json.dumps(line) + "\n")

    return append


Write = Callable[..., None]


def shown(groups: list[Group]) -> list[list[str]]:
    return [[line.event.operation if line.event else "-" for line in group.lines] for group in groups]


def test_the_last_transaction_waits_until_another_one_follows(lines: PartitionLines, write: Write) -> None:
    write(("c", 1), ("c", 2), ("u", 2))
    assert shown(lines.next_groups(everything=False)) == [["c"]]
    assert lines.next_groups(everything=False) == []
    write(("d", 2), None, ("c", 3))
    assert shown(lines.next_groups(everything=False)) == [["c", "u", "d", "-"]]
    assert shown(lines.next_groups(everything=True)) == [["c"]]
    lines.files.close()


def test_what_was_asked_for_is_given_whether_it_is_finished_or_not(lines: PartitionLines, write: Write) -> None:
    write(("c", 1), ("d", 2), None)
    assert shown(lines.next_groups(everything=True)) == [["c"], ["d", "-"]]
    assert lines.next_groups(everything=True) == []
    lines.files.close()


def test_events_that_name_no_transaction_wait_for_nothing(lines: PartitionLines, write: Write) -> None:
    write(("c", None), None, ("c", None))
    assert shown(lines.next_groups(everything=False)) == [["c", "-"], ["c"]]
    lines.files.close()


def test_a_transaction_larger_than_what_is_read_at_once_comes_in_parts(lines: PartitionLines, write: Write) -> None:
    write(("c", 1), *([("u", 2)] * 3), ("d", 2), None, ("c", 2), padding=MOST_BYTES // 4)
    write(("c", 3))
    found = []
    while not lines.files.at_end:
        found.append(lines.next_groups(everything=False))
    found.append(lines.next_groups(everything=True))
    groups = list(chain.from_iterable(found))
    assert list(chain.from_iterable(shown(groups))) == ["c", "u", "u", "u", "d", "-", "c", "c"]
    of_two = [
        group for group in groups if any(line.event and line.event.transaction == "txId 2" for line in group.lines)
    ]
    assert [(group.continues, group.is_closed) for group in of_two] == [
        (number > 0, number == len(of_two) - 1) for number in range(len(of_two))
    ]
    assert len(of_two) > 1
    assert all(shown([group])[0][-1] not in "d-" for group in of_two), "a delete was given without what follows it"
    lines.files.close()
