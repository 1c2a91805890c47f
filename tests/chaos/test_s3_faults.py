"""Every call of the object store, with every fault of the server, twice and then healed."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.errors import CdcError, ObjectExists, ObjectMissing
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.object_store.s3 import S3ObjectStore
from cdc_pipeline.object_store.s3_location import ANSWER_SECONDS
from tests.chaos.report import Report
from tests.support.fault_plan import FaultPlan, planned_faults
from tests.support.faulty_server import CONFLICT, PASSING, PRECONDITION, Call, Fault, no_answer
from tests.support.s3 import s3_location, started_moto

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("s3 faults")]

FAULTS = (*PASSING, CONFLICT, PRECONDITION)
PART_BYTES = 5 << 20
LARGE = bytes(PART_BYTES + 1)
SMALL = b"content"
MOST_REFUSALS = 3

Doing = Callable[[ObjectStore, str, Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """An object store behind the proxy, and a file that goes up in two parts."""

    objects: S3ObjectStore
    plan: FaultPlan
    large: Path


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    large = tmp_path_factory.mktemp("s3") / "large"
    large.write_bytes(LARGE)
    with started_moto() as moto, planned_faults(moto) as (url, plan):
        yield Behind(
            objects=S3ObjectStore(s3_location(url), part_bytes=PART_BYTES, is_proven=True), plan=plan, large=large
        )


def put(objects: ObjectStore, key: str, _large: Path) -> None:
    objects.put_if_absent(key, SMALL)


def put_large(objects: ObjectStore, key: str, large: Path) -> None:
    objects.put_file_if_absent(key, large)


def put_over_another(objects: ObjectStore, key: str, large: Path) -> None:
    with pytest.raises(ObjectExists):
        objects.put_file_if_absent(key, large)


def get(objects: ObjectStore, key: str, _large: Path) -> None:
    assert objects.get(key) == SMALL


def head(objects: ObjectStore, key: str, _large: Path) -> None:
    assert objects.head(key).size_bytes == len(SMALL)


def list_folder(objects: ObjectStore, key: str, _large: Path) -> None:
    assert [found.key for found in objects.list_prefix(key.rpartition("/")[0])] == [key]


def delete(objects: ObjectStore, key: str, _large: Path) -> None:
    objects.delete(key)


DOING: dict[Call, Doing] = {
    Call.PUT: put,
    Call.GET: get,
    Call.HEAD: head,
    Call.LIST: list_folder,
    Call.DELETE: delete,
    Call.BEGIN_PARTS: put_large,
    Call.PUT_PART: put_large,
    Call.COMPLETE_PARTS: put_large,
    Call.ABORT_PARTS: put_over_another,
}
NEEDS_ONE = (Call.GET, Call.HEAD, Call.LIST, Call.DELETE, Call.ABORT_PARTS)


@pytest.mark.chaos_cut
@pytest.mark.parametrize("call", DOING)
def test_each_call_survives_each_fault_twice(behind: Behind, report: Report, call: Call) -> None:
    for fault in FAULTS:
        survive(behind, call, fault, report, failures=2)


def test_no_call_waits_for_ever_for_an_answer(behind: Behind, report: Report) -> None:
    """All of them beside each other, since each waits for long."""
    fault, objects = no_answer(ANSWER_SECONDS + 3), behind.objects
    with report.red_unless_done("object store: every call", fault.name):
        keys = {call: prepared(objects, call, fault) for call in DOING}
        for call in DOING:
            behind.plan.fail(call, fault, times=1)
        with ThreadPoolExecutor(len(DOING)) as threads:
            took = list(threads.map(lambda call: timed(behind, call, keys[call]), DOING))
        assert {call for call in DOING if behind.plan.made[call, fault.name] == 1} == set(DOING)
        for call, key in keys.items():
            check(objects, key, call)
    for call, (seconds, words) in zip(DOING, took, strict=True):
        report.record(f"object store: {call}", fault.name, words, seconds)


def survive(behind: Behind, call: Call, fault: Fault, report: Report, *, failures: int) -> None:
    site, plan = f"object store: {call}", behind.plan
    with report.red_unless_done(site, fault.name):
        key = prepared(behind.objects, call, fault)
        plan.fail(call, fault, times=failures)
        took, words = timed(behind, call, key)
        assert plan.made[call, fault.name] == failures - plan.forget(call)
        assert plan.made[call, fault.name] > 0
        check(behind.objects, key, call)
    report.record(site, fault.name, words, took)


def prepared(objects: ObjectStore, call: Call, fault: Fault) -> str:
    key = f"{call}/{fault.name}/object".replace(" ", "-")
    if call in NEEDS_ONE:
        objects.put_if_absent(key, SMALL)
    return key


def timed(behind: Behind, call: Call, key: str) -> tuple[timedelta, str]:
    """What is refused as retryable, or by a condition that was never asked for, is called again."""
    began, refused = time.monotonic(), list[str]()
    while not _done(DOING[call], behind, key, refused):
        assert len(refused) <= MOST_REFUSALS
    words = f"right after {', '.join(refused)}" if refused else "right"
    return timedelta(seconds=time.monotonic() - began), words


def _done(doing: Doing, behind: Behind, key: str, refused: list[str]) -> bool:
    try:
        doing(behind.objects, key, behind.large)
    except CdcError as error:
        refused.append(type(error).__name__)
        return False
    return True


def check(objects: ObjectStore, key: str, call: Call) -> None:
    if call is Call.DELETE:
        with pytest.raises(ObjectMissing):
            objects.head(key)
    else:
        assert objects.get(key) == (LARGE if DOING[call] is put_large else SMALL)
