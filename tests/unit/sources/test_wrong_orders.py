"""A row whose order or time is wrong does not make others too late."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.change_files import ChangeFolder, Read, csv_text, json_lines

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = {".csv": csv_text, ".jsonl": json_lines}
TABLE = {"name": "shop.public.orders", "id": ["id"], "columns": {"id": "bigint", "v": "text"}}


def read_daily(folder: Path, suffix: str, values: Sequence[tuple[float, str]], zone: float = 0) -> Read:
    """Reads a file per pair of (day it was written, `v` of its row); `{now}` in `v` is then, `zone` hours ahead."""
    files = ChangeFolder(
        folder=folder, source={"format": "upserts", "order_by": ["v"], "late_by": "7d"}, tables=(TABLE,)
    )
    for id_, (day, value) in enumerate(values, start=1):
        written = BEGIN + timedelta(days=day)
        now = (written + timedelta(hours=zone)).strftime("%Y-%m-%d %H:%M:%S")
        path = files.write(f"orders/{id_:03}{suffix}", KINDS[suffix]([{"id": id_, "v": value.format(now=now)}]))
        os.utime(path, (written.timestamp(),) * 2)
    return files.read()


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("wrong", ["2099-01-01 00:00:00", "2099-01-01", "2099-01-01T00:00:00.5Z"])
def test_a_time_of_the_far_future_makes_no_later_row_too_late(tmp_path: Path, suffix: str, wrong: str) -> None:
    read = read_daily(tmp_path, suffix, [(0, "{now}"), (1, wrong), *((day, "{now}") for day in (8, 15, 16, 17, 40))])
    assert [unfit.reason for unfit in read.unfit] == []


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("values", [("1", "N/A", "3", "4", "5"), ("N/A", "1", "2", "3", "4"), ("0", "N/A", "1", "2")])
def test_a_text_among_numbers_makes_no_later_row_too_late(tmp_path: Path, suffix: str, values: Sequence[str]) -> None:
    read = read_daily(tmp_path, suffix, [(8 * number, value) for number, value in enumerate(values)])
    assert [unfit.reason for unfit in read.unfit] == []


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize(
    ("values", "late"),
    [
        (("1", "2", "3", "1"), "1"),
        (("a", "b", "c", "a"), "a"),
        (("0", "b", "c", "a"), "a"),
        (("-2", "-1", "1", "-2"), "-2"),
    ],
)
def test_a_row_that_is_too_late_stays_so(tmp_path: Path, suffix: str, values: Sequence[str], late: str) -> None:
    read = read_daily(tmp_path, suffix, [(8 * number, value) for number, value in enumerate(values)])
    (unfit,) = read.unfit
    assert "is too late" in unfit.reason
    assert late in str(unfit.payload)


@pytest.mark.parametrize("zone", [-12, 14])
def test_local_times_are_an_order_too(tmp_path: Path, zone: int) -> None:
    days = [(day, "{now}") for day in (0, 8, 16)]
    read = read_daily(tmp_path, ".csv", [*days, (17, "2026-01-02 00:00:00")], zone)
    assert ["is too late" in unfit.reason for unfit in read.unfit] == [True]


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("copied", [False, True])
def test_a_wrong_time_moves_no_horizon(tmp_path: Path, suffix: str, copied: bool) -> None:  # noqa: FBT001
    """Neither in files that were just written, nor in old ones that were copied later."""
    before = [(100, "01-01 00"), (900, "01-09 10"), (950, "01-09 11"), (951, "12-24 00"), (899, "01-09 09")]
    after = [(1700, "01-17 12"), (850, "01-17 11")]
    source = {"format": "upserts", "order_by": ["v"], "late_by": "7d", "time_column": "ts"}
    files = ChangeFolder(folder=tmp_path, source=source, tables=(TABLE,))
    for day, values in ((9, before), (17, after)):
        rows = [{"id": order, "v": order, "ts": f"2026-{time}:00:00"} for order, time in values]
        path = files.write(f"orders/{day:02}{suffix}", KINDS[suffix](rows))
        os.utime(path, ((BEGIN + timedelta(days=200 if copied else day)).timestamp(),) * 2)
    (late,) = files.read().unfit
    assert "older than 900" in late.reason
    assert "850" in str(late.payload)
