"""What the fast lake keeps in its files: the kernel's states of a keyed table, or the rows of a keyless one."""

import io
import json
import math
import time as clock
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from operator import itemgetter
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import FenceMismatch, LakeError
from cdc_pipeline.lake.checkpoint import write_checkpoint
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.protocol import ClaimWork, DataFile, Fence, LakeTable, SliceInput, UpsertOutcome
from cdc_pipeline.lake.shape import DROPPED_PREFIX, Shape
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import (
    ABSENT,
    DELETED,
    OLD_ID_PREFIX,
    OPERATION,
    OWN_PREFIX,
    STATE,
    VERSION,
    ClaimCounts,
    Operation,
)
from cdc_pipeline.steps import no_step
from cdc_pipeline.types import arrow_schema
from tests.support.reference.kernel import (
    KeyedTable,
    Register,
    RowState,
    deduplicate,
    join,
    net_copies,
    purge,
    show,
)
from tests.support.reference.model import Content, Event, Id, Row

Rows = list[dict[str, Any]]
CHECKPOINT_INTERVAL = 20
"""Commits, as in the real lake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One row of a keyless table, beside its content."""

    version: str
    dropped: dict[str, Any] = field(default_factory=dict)

    def row(self, content: Content, *, deleted: bool) -> dict[str, Any]:
        return {**dict(content), **self.dropped, VERSION: self.version, DELETED: deleted, STATE: None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A table as its log shows it at `version`, and the files that hold it."""

    version: int
    rows: pa.Table
    files: tuple[Action, ...]
    transaction: int | None


def lake_schema(table: LakeTable) -> pa.Schema:
    own = [pa.field(VERSION, pa.string()), pa.field(DELETED, pa.bool_()), pa.field(STATE, pa.string())]
    return pa.schema([*arrow_schema(table.schema), *own])


def events_of(store: ObjectStore, work: ClaimWork, lake: Shape) -> list[Event]:
    """The events of a claim's slices."""
    return [
        _event_of(row, content, lake)
        for content in work.slices
        for row in pq.read_table(io.BytesIO(store.get(content.key))).to_pylist()
    ]


def _event_of(row: dict[str, Any], content: SliceInput, lake: Shape) -> Event:
    """With the lake's names and types."""
    operation, schema = Operation(row[OPERATION]), content.schema
    places, types = lake.lake_names(schema), {column.name: column.type for column in lake.columns}
    absent = (*schema.key, *(row[ABSENT] or ()))
    silent = operation is Operation.TRUNCATE or (operation is Operation.DELETE and not schema.is_keyless)
    values = {place: _widened(row[name], types[place]) for name, place in places.items() if name not in absent}
    filled = operation is Operation.INSERT or schema.is_keyless
    missing = {
        column.name: column.missing_value
        for column in lake.columns
        if filled and column.missing is not None and not column.dropped and column.name not in places.values()
    }
    return Event(
        operation=operation,
        version=row[VERSION],
        id=() if operation is Operation.TRUNCATE else tuple(row[name] for name in schema.key),
        old_id=tuple(row[OLD_ID_PREFIX + name] for name in schema.key) if operation is Operation.MOVE else (),
        values={} if silent else missing | values,
        lacking=frozenset(name for name in lake.names if name not in places.values()) - missing.keys(),
    )


def keyed_claim(
    table: LakeTable, work: ClaimWork, rows: Rows, events: list[Event], columns: tuple[str, ...]
) -> tuple[Rows, Counter[str]]:
    """The rows after the claim, and how often each thing became of an id. `hidden`: changed, but not to be seen."""
    truncates = {event.version for event in events if event.operation is Operation.TRUNCATE}
    before = KeyedTable(
        rows=dict(_state_of(row, table, columns) for row in sorted(rows, key=itemgetter(VERSION))),
        truncated_at="" if work.truncated_at in truncates else work.truncated_at,
    )
    soft, tombstones = table.deletes == "soft", work.tombstones or not table.ordered
    outcome = deduplicate(events)
    after = join(before, outcome)
    if not tombstones:
        after = _without_traceless(after) if soft else purge(after)
    shown = [show(state, columns=columns, soft=soft) for state in (before, after)]
    named = {event.id for event in events if event.operation is not Operation.TRUNCATE}
    effects = Counter(_effect(id_, before, after, shown) for id_ in named | before.rows.keys())
    effects["tied"] = outcome.ties
    effects["ignored"] = len(named) - sum(effects[seen] for seen in ("inserted", "updated", "deleted", "incomplete"))
    return [_row_of(id_, state, after, table, columns) for id_, state in after.rows.items()], effects


def keyless_claim(
    table: LakeTable,
    work: ClaimWork,
    rows: Rows,
    events: list[Event],
    columns: tuple[str, ...],
    dropped: tuple[str, ...] = (),
) -> tuple[Rows, Counter[str]]:
    """Copies that stay keep their versions, newest first. A delete without a copy stays hidden, if it may be met.

    `dropped`: columns that the source dropped, and those that no event has. They are kept, and compared never.
    """
    owing = work.tombstones or not table.ordered
    newer = [event for event in events if event.version > work.truncated_at]
    newest: dict[Content, str] = {}
    added: dict[Content, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in sorted(newer, key=lambda event: event.version):
        newest[content := _content(event.values, columns)] = event.version
        if event.operation is Operation.INSERT:
            added[content][event.version] = {name: event.values.get(name) for name in dropped}
    copies, owed = defaultdict[Content, list[Copy]](list), defaultdict[Content, list[Copy]](list)
    for row in rows:
        if not work.truncates or row[VERSION] > work.truncated_at:
            copy = Copy(version=row[VERSION], dropped={name: row.get(name) for name in dropped})
            (owed if row.get(DELETED) else copies)[_content(row, columns)].append(copy)
    effects: Counter[str] = Counter()
    whole = (replace(event, values=dict(_content(event.values, columns))) for event in newer)
    for content, count in net_copies(whole).net.items():
        had, hidden = len(copies[content]), len(owed[content]) if owing or count < 0 else 0
        final = count + had - hidden
        kept = sorted(copies[content], key=lambda copy: copy.version, reverse=True)
        kept += [Copy(version=newest[content], dropped=rest) for rest in reversed(added[content].values())]
        copies[content] = kept[: max(0, final)]
        if hidden or final < 0:
            owed[content] = [Copy(version=newest[content])] * (-final if owing and final < 0 else 0)
        more = len(copies[content]) - had
        effects.update(inserted=max(0, more), deleted=max(0, -more), ignored=max(0, -final - hidden))
    made = [(content, copy, False) for content, found in copies.items() for copy in found]
    made += [(content, copy, True) for content, found in owed.items() for copy in found]
    return [copy.row(content, deleted=gone) for content, copy, gone in made], effects


def _content(values: Mapping[str, Any], columns: tuple[str, ...]) -> Content:
    """Each NaN is the same one, as in the real lake: Python finds only a NaN that is the same object equal."""
    found = sorted((name, values.get(name)) for name in columns)
    return tuple((name, math.nan if isinstance(value, float) and math.isnan(value) else value) for name, value in found)


def purged(table: LakeTable, rows: Rows, below: str) -> Rows:
    """Without dead rows whose version is lower."""
    if table.deletes == "soft":
        return rows
    return [row for row in rows if not (row.get(DELETED) and row[VERSION] < below and is_dead(row))]


def is_dead(row: dict[str, Any]) -> bool:
    if not row.get(STATE):
        return True
    known = json.loads(row[STATE])
    return bool(known["upsert"] <= max(known["deletions"], default=""))


def _without_traceless(table: KeyedTable) -> KeyedTable:
    kept = {id_: state for id_, state in table.rows.items() if state.upsert}
    return KeyedTable(rows=kept, truncated_at=table.truncated_at)


def _effect(id_: Id, before: KeyedTable, after: KeyedTable, shown: list[dict[Id, Row]]) -> str:
    was, now = (rows.get(id_) for rows in shown)
    if was == now:
        return "unchanged" if before.rows.get(id_) == after.rows.get(id_) else "hidden"
    is_visible = now is not None and not now.deleted and not now.incomplete
    was_visible = was is not None and not was.deleted and not was.incomplete
    if is_visible:
        return "updated" if was_visible else "inserted"
    if now is not None and now.incomplete:
        return "incomplete"
    if was_visible:
        return "updated" if now is not None else "deleted"
    return "hidden"


def _state_of(row: dict[str, Any], table: LakeTable, columns: tuple[str, ...]) -> tuple[Id, RowState]:
    id_ = tuple(row[name] for name in table.schema.key)
    known = json.loads(row[STATE]) if row.get(STATE) else {"upsert": row[VERSION], "versions": {}}
    if not row.get(STATE):
        known["versions"] = dict.fromkeys(columns, row[VERSION])
    since = dict.fromkeys(set(columns) - set(known.get("columns", columns)), row[VERSION])
    versions = since | known["versions"]
    return id_, RowState(
        upsert=known["upsert"],
        deletions=tuple(known.get("deletions", ())),
        known={name: Register(version=version, value=row.get(name)) for name, version in versions.items()},
        lacked=known.get("lacked", {}),
    )


def _row_of(id_: Id, state: RowState, rows: KeyedTable, table: LakeTable, columns: tuple[str, ...]) -> dict[str, Any]:
    (shown,) = show(KeyedTable(rows={id_: state}, truncated_at=rows.truncated_at), columns=columns).values() or (None,)
    visible = shown is not None and not shown.incomplete
    current = {name: found for name, found in state.known.items() if shown is None or name in shown.values}
    known = {
        "upsert": state.upsert,
        "deletions": list(state.deletions),
        "versions": {name: found.version for name, found in current.items()},
        "columns": columns,
        "lacked": state.lacked,
    }
    values = shown.values if visible and shown is not None else {name: found.value for name, found in current.items()}
    own = {VERSION: state.version, DELETED: not visible, STATE: json.dumps(known)}
    return dict(zip(table.schema.key, id_, strict=True)) | values | own


def source_columns(schema: pa.Schema, table: LakeTable) -> tuple[str, ...]:
    return tuple(
        name
        for name in schema.names
        if (not name.startswith(OWN_PREFIX) or name.startswith(DROPPED_PREFIX)) and name not in table.schema.key
    )


def _widened(value: Any, type_: str) -> Any:
    """A slice file may be of before its column was wider."""
    if type_ == "TIMESTAMP_NTZ" and isinstance(value, date) and not isinstance(value, datetime):
        return datetime.combine(value, time())
    return value


def outcome_of(
    effects: Mapping[str, int], *, version: int, already: bool, started: float, work: ClaimWork | None = None
) -> UpsertOutcome:
    """`effects`: ids by what became of them. `started`: by the monotonic clock."""
    read = sum(content.rows for content in work.slices) if work else 0
    counts = {
        name: effects.get(name, 0) for name in ("inserted", "updated", "deleted", "ignored", "incomplete", "tied")
    }
    seconds = clock.monotonic() - started
    return UpsertOutcome(
        counts=ClaimCounts(read=read, **counts), lake_version=version, already_applied=already, seconds=seconds
    )


def checked_fence(fence: Fence | None, table: LakeTable, work: ClaimWork) -> Fence:
    """Raises LakeError without a table, FenceMismatch where the claim is not the next one."""
    if fence is None:
        raise LakeError(f"there is no lake table {table.name}", remedy="take its snapshot first")
    if fence.number != work.first_number - 1 and fence.number < work.last_number:
        raise FenceMismatch(f"the lake is at slice {fence.number}", expected=f"{work.first_number - 1}")
    return fence


def checkpoint_when_due(store: ObjectStore, log: DeltaLog, version: int) -> None:
    """As in the real lake. Without checkpoints every claim would read the log from its start."""
    if version - max(log.checkpoint_before(version)[0], 0) >= CHECKPOINT_INTERVAL:
        write_checkpoint(store, log, version, 0, no_step)


def replaced_files(table: LakeTable, stored: Stored, file: DataFile, *, data_change: bool) -> list[Action]:
    """Actions after which `file` alone holds the table."""
    removed = [{"remove": {"path": old["path"], "dataChange": data_change}} for old in stored.files]
    path = quote(file.key.removeprefix(f"{lake_key(table.name)}/"))
    added = {"path": path, "partitionValues": {}, "size": file.size_bytes, "modificationTime": 0}
    return [*removed, {"add": {**added, "dataChange": data_change}}]
