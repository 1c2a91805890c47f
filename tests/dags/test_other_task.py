"""A task that has nothing to do without another one ends when that one has ended, whoever ended it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from cdc_other_task import check_goes_on

from cdc_pipeline.errors import SnapshotError

HALF_A_MINUTE = timedelta(seconds=30)


@dataclass(slots=True)
class States:
    """Answers as Airflow's task instance does; None: Airflow does not answer. It is always a minute later."""

    states: Mapping[str, str | None] | None
    dag_id: str = "cdc_snapshot"
    run_id: str = "manual__1"
    asked: list[tuple[str, list[str], list[str]]] = field(default_factory=list)
    time: float = 0.0

    def get_task_states(self, dag_id: str, *, task_ids: list[str], run_ids: list[str]) -> Mapping[str, Any]:
        self.asked.append((dag_id, task_ids, run_ids))
        if self.states is None:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))
        return {self.run_id: self.states} if self.states else {}

    def now(self) -> float:
        return self.time


@pytest.mark.parametrize(
    "states",
    [
        None,
        {},
        {"orchestrate": None},
        {"orchestrate": "running"},
        {"orchestrate": "up_for_retry"},
        {"work_slot_0": "failed", "work_slot_1": "queued"},
    ],
)
def test_a_task_that_may_still_go_on_is_waited_for(states: Mapping[str, str | None] | None) -> None:
    found = States(states)
    check = check_goes_on(found, "orchestrate", within=HALF_A_MINUTE, now=found.now)
    found.time = 60.0
    check()
    assert found.asked == [("cdc_snapshot", ["orchestrate"], ["manual__1"])]


SLOTS_IN_ANY_STATE = [
    {"work_slot_0": "success", "work_slot_1": "success"},
    {"work_slot_0": "failed", "work_slot_1": "success"},
    {"work_slot_0": "failed", "work_slot_1": "removed"},
]


@pytest.mark.parametrize("states", SLOTS_IN_ANY_STATE)
def test_slots_that_have_ended_at_two_looks_end_the_orchestrator(states: Mapping[str, str | None]) -> None:
    found = States(states)
    check = check_goes_on(found, "work_slot", looks=2, within=HALF_A_MINUTE, now=found.now)
    for found.time in (14.0, 16.0, 30.0):
        check()
    assert len(found.asked) == 1
    found.time = 31.0
    with pytest.raises(SnapshotError, match=r"the task work_slot of this run has ended .*clear the whole run"):
        check()


def test_a_slot_that_begins_again_between_two_looks_goes_on() -> None:
    found = States({"work_slot_0": "success"})
    check = check_goes_on(found, "work_slot", looks=2, within=HALF_A_MINUTE, now=found.now)
    for found.time, state in ((16.0, "success"), (32.0, "running"), (48.0, "success")):
        found.states = {"work_slot_0": state}
        check()
    assert len(found.asked) == 3


def test_the_looks_at_a_task_are_in_a_row_although_airflow_did_not_answer_between() -> None:
    found = States({"work_slot_0": "success"})
    check = check_goes_on(found, "work_slot", looks=2, within=HALF_A_MINUTE, now=found.now)
    states, found.time = found.states, 16.0
    check()
    found.states, found.time = None, 32.0
    check()
    found.states, found.time = states, 48.0
    with pytest.raises(SnapshotError):
        check()


@pytest.mark.parametrize(
    "states",
    [{"orchestrate": "failed"}, {"orchestrate": "success"}, {"work_slot_0": "failed", "work_slot_1": "success"}],
)
def test_a_task_that_has_ended_ends_the_other(states: Mapping[str, str | None]) -> None:
    found = States(states)
    check = check_goes_on(found, "orchestrate", within=HALF_A_MINUTE, now=found.now)
    for found.time in (1.0, 29.0):
        check()
    assert found.asked == []
    found.time = 31.0
    with pytest.raises(SnapshotError, match=r"the task orchestrate of this run has ended .*clear the whole run"):
        check()
