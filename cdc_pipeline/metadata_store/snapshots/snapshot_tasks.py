"""Snapshot tasks. Worker slots claim them one by one, each with a task lease by the database's clock."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import CTE, ColumnElement, and_, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.errors import SnapshotError, StaleEpoch
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, as_optional_record, as_record, batches, streamed
from cdc_pipeline.metadata_store.snapshots.records import SnapshotTask
from cdc_pipeline.metadata_store.states import TaskKind, TaskState

_TASK = models.snapshot_task
_ID = (_TASK.c.snapshot_id, _TASK.c.kind, _TASK.c.ordinal)
MOST_ATTEMPTS = 5
"""A task that fails, or whose worker slot dies, is tried so many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task to add. `input` is JSON with all that a worker slot needs; it is the same for every attempt."""

    kind: TaskKind
    ordinal: int
    input: Mapping[str, Any]


class SnapshotTasks(OfStore):
    def add_tasks(self, snapshot_id: str, tasks: Sequence[NewTask]) -> None:
        """Idempotent. Raises SnapshotError when a task with this ordinal exists with another input."""
        if not tasks:
            return
        rows = [{"snapshot_id": snapshot_id, **asdict(task)} for task in tasks]
        inputs = select(_TASK.c.kind, _TASK.c.ordinal, _TASK.c.input).where(
            _TASK.c.snapshot_id == snapshot_id, _TASK.c.kind.in_({task.kind for task in tasks})
        )
        with self.database.transaction("snapshot_task.add") as connection:
            for batch in batches(rows):
                connection.execute(insert(_TASK).on_conflict_do_nothing(), batch)
            known = {(kind, ordinal): given for kind, ordinal, given in streamed(connection, inputs)}
        for task in tasks:
            if known[task.kind, task.ordinal] != task.input:
                raise SnapshotError(
                    f"the {task.kind} task {task.ordinal} of snapshot {snapshot_id} is already there",
                    expected="the same input as the first time",
                    remedy="run cdc snapshot again: it starts over, because two plans must not be mixed",
                )

    def tasks(self, snapshot_id: str, kind: TaskKind, *, state: TaskState | None = None) -> tuple[SnapshotTask, ...]:
        """By ordinal; with `state`, only those that are in it."""
        query = select(_TASK).where(_TASK.c.snapshot_id == snapshot_id, _TASK.c.kind == kind).order_by(*_ID)
        if state is not None:
            query = query.where(_TASK.c.state == state)
        with self.database.transaction("snapshot_task.list") as connection:
            return tuple(as_record(SnapshotTask, row) for row in streamed(connection, query))

    def counts(self, snapshot_id: str, kind: TaskKind) -> Mapping[TaskState, int]:
        """The number of the tasks of this kind in each state that any of them is in."""
        of_kind = (_TASK.c.snapshot_id == snapshot_id) & (_TASK.c.kind == kind)
        query = select(_TASK.c.state, func.count().label("tasks")).where(of_kind).group_by(_TASK.c.state)
        with self.database.transaction("snapshot_task.count") as connection:
            return {row.state: row.tasks for row in connection.execute(query)}

    def claim_task(
        self, *, slot: str, duration: timedelta, snapshot_ids: Sequence[str], kinds: Sequence[TaskKind]
    ) -> SnapshotTask | None:
        """Claims the next task that waits or whose task lease has expired; None when there is none now.

        Never waits for another slot. Marks tasks as failed whose lease expired in the last attempt: a task that ends
        the process of each slot would otherwise be claimed for ever.
        """
        offered = _TASK.c.snapshot_id.in_(snapshot_ids) & _TASK.c.kind.in_(kinds)
        lost = _chosen(offered & _has_expired() & (_TASK.c.attempt >= MOST_ATTEMPTS), name="lost")
        give_up = (
            update(_TASK)
            .where(tuple_(*_ID) == tuple_(lost.c.snapshot_id, lost.c.kind, lost.c.ordinal))
            .values(state=TaskState.FAILED, error=str(_lost()), finished_at=func.clock_timestamp())
        )
        is_takeable = (_TASK.c.state == TaskState.WAITING) | (_has_expired() & (_TASK.c.attempt < MOST_ATTEMPTS))
        chosen = _chosen(offered & is_takeable, name="chosen", most=1)
        take = (
            update(_TASK)
            .where(tuple_(*_ID) == tuple_(chosen.c.snapshot_id, chosen.c.kind, chosen.c.ordinal))
            .values(
                state=TaskState.CLAIMED,
                attempt=_TASK.c.attempt + 1,
                slot=slot,
                lease_expires_at=func.clock_timestamp() + duration,
                started_at=func.clock_timestamp(),
            )
            .returning(_TASK)
        )
        with self.database.transaction("snapshot_task.claim") as connection:
            connection.execute(give_up)
            row = connection.execute(take).one_or_none()
        return as_optional_record(SnapshotTask, row)

    def renew_task(self, task: SnapshotTask, *, duration: timedelta) -> SnapshotTask:
        """Raises StaleEpoch when another attempt has the task."""
        return self._change("snapshot_task.renew", task, lease_expires_at=func.clock_timestamp() + duration)

    def finish_task(self, task: SnapshotTask, *, output: Mapping[str, Any], rows: int, bytes_: int) -> SnapshotTask:
        """Marks the task as done; the files that `output` names must be durable.

        Raises StaleEpoch when another attempt has the task.
        """
        return self._change(
            "snapshot_task.finish",
            task,
            state=TaskState.DONE,
            output=dict(output),
            rows=rows,
            bytes=bytes_,
            error=None,
            finished_at=func.clock_timestamp(),
        )

    def fail_task(self, task: SnapshotTask, *, error: str, again: bool) -> SnapshotTask:
        """Marks the task as failed, or with `again` as waiting for another attempt.

        Raises StaleEpoch when another attempt has the task.
        """
        state = TaskState.WAITING if again else TaskState.FAILED
        finished = None if again else func.clock_timestamp()
        return self._change("snapshot_task.fail", task, state=state, error=error, finished_at=finished)

    def _change(self, name: str, task: SnapshotTask, **values: Any) -> SnapshotTask:
        reachable = {TaskState.CLAIMED, values.get("state", TaskState.CLAIMED)}
        with self.database.transaction(name) as connection:
            row = connection.execute(
                update(_TASK)
                .where(
                    tuple_(*_ID) == (task.snapshot_id, task.kind, task.ordinal),
                    _TASK.c.state.in_(reachable),
                    _TASK.c.attempt == task.attempt,
                    _TASK.c.slot == task.slot,
                )
                .values(**values)
                .returning(_TASK)
            ).one_or_none()
        if row is None:
            raise StaleEpoch(
                f"the {task.kind} task {task.ordinal} of snapshot {task.snapshot_id} is no longer attempt"
                f" {task.attempt} of {task.slot}",
                expected="the task under its own task lease",
                remedy="drop it: another worker slot has it, or it is done",
            )
        return as_record(SnapshotTask, row)


def _chosen(condition: ColumnElement[bool], *, name: str, most: int | None = None) -> CTE:
    """The ids of at most so many tasks, locked. Leaves out those that another transaction has locked."""
    query = select(*_ID).where(condition).order_by(*_ID).limit(most).with_for_update(skip_locked=True)
    return query.cte(name).prefix_with("MATERIALIZED")


def _has_expired() -> ColumnElement[bool]:
    return and_(_TASK.c.state == TaskState.CLAIMED, _TASK.c.lease_expires_at <= func.clock_timestamp())


def _lost() -> SnapshotError:
    return SnapshotError(
        f"attempt {MOST_ATTEMPTS} was lost with its worker slot, whose process ended or hung",
        expected="a slot that renews its task lease until the task is done",
        remedy="look for what ended it, such as too little memory, and run cdc snapshot again",
    )
