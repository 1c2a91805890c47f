"""An acceptance case as Debezium writes it: lines per stream partition, and the pipeline.yml that reads them.

A line is an object with `key`, `value` and `headers`, as a Kafka sink keeps them; the value is an envelope without its
`schema` wrapper. A key change is a delete and a create that name each other in their headers, as the PostgreSQL
connector sends it; a delete is followed by a tombstone line.
"""

import json
from base64 import b64encode
from typing import Any

from tests.support.acceptance_cases import Case, CaseTable, Change, Row

PLACEHOLDER = "__debezium_unavailable_value"
_CLOCK_START_MS = 1_700_000_000_000


def debezium_lines(case: Case) -> dict[int, list[str]]:
    """Stream partition -> its lines, in the order of their arrival."""
    lines: dict[int, list[str]] = {}
    for change in case.changes:
        for partition, line in change_lines(case, change):
            lines.setdefault(partition, []).append(json.dumps(line))
    return lines


def debezium_settings(case: Case) -> dict[str, Any]:
    """`source` and `tables` of the pipeline.yml, with `events/` as its folder."""
    source: dict[str, Any] = {"kind": "debezium_files", "path": "events/", "ordered": case.ordered}
    if not case.ordered:
        source["sequence_by"] = list(case.sequence_by)
    tables = []
    for name, table in case.tables.items():
        entry: dict[str, Any] = {"name": str(case.name_of(name)), "columns": dict(table.columns)}
        if table.id:
            entry["id"] = list(table.id)
        entry |= {"deletes": table.deletes, "truncate": table.truncate}
        if table.partition_by:
            entry["partition_by"] = [dict(part) for part in table.partition_by]
        tables.append(entry)
    return {"source": source, "tables": tables}


def change_lines(case: Case, change: Change) -> list[tuple[int, dict[str, Any]]]:
    """Each with its stream partition."""
    if change.truncate:
        return [(change.partition, _line(case, change, name, op="t")) for name in change.truncate]
    table = case.tables[change.table]
    if change.move is not None:
        return _key_change(case, change, table)
    if change.delete is not None:
        key = _key(table, change.delete)
        deleted = _line(case, change, change.table, op="d", key=key, before=_whole(table, change.delete))
        return [(change.partition, deleted), *([(change.partition, {**deleted, "value": None})] if key else [])]
    op = "c" if change.insert is not None else "r" if change.read is not None else "u"
    after = _after(table, change)
    key = _key(table, after)
    before = None if change.before is None else _whole(table, change.before)
    return [(change.partition, _line(case, change, change.table, op=op, key=key, before=before, after=after))]


def _key_change(case: Case, change: Change, table: CaseTable) -> list[tuple[int, dict[str, Any]]]:
    old_row, after = change.moved_from or {}, _after(table, change)
    old_key, new_key = _key(table, old_row), _key(table, after)
    old_partition = change.partition if change.old_partition is None else change.old_partition
    deleted = _line(case, change, change.table, op="d", key=old_key, before=_whole(table, old_row))
    deleted["headers"] = [["__debezium.newkey", json.dumps(new_key)]]
    created = _line(case, change, change.table, op="c", key=new_key, after=after)
    created["headers"] = [["__debezium.oldkey", json.dumps(old_key)]]
    old = [(old_partition, deleted), (old_partition, {**deleted, "value": None})]
    return [*old, (change.partition, created)]


def _line(
    case: Case,
    change: Change,
    table: str,
    *,
    op: str,
    key: Row | None = None,
    before: Row | None = None,
    after: Row | None = None,
) -> dict[str, Any]:
    """`clock`, if the case has one, is the source's wall clock in seconds; order is `at`, the source's position."""
    at_ms = _CLOCK_START_MS + 1_000 * (change.place if change.clock is None else change.clock)
    name = case.name_of(table)
    source = {
        "version": "3.4.0.Final",
        "connector": "postgresql",
        "name": name.database,
        "ts_ms": at_ms,
        "snapshot": "true" if op == "r" else "false",
        "db": name.database,
        "schema": name.schema,
        "table": name.table,
        "txId": change.transaction,
        "lsn": change.at,
    }
    transaction = None
    if op != "r":
        order = change.place
        transaction = {"id": f"{change.transaction}", "total_order": order, "data_collection_order": order}
    value = {"before": before, "after": after, "source": source, "transaction": transaction, "op": op, "ts_ms": at_ms}
    return {"key": key, "value": value, "headers": []}


def _key(table: CaseTable, row: Row) -> Row | None:
    return {name: row[name] for name in table.id} if table.id else None


def _whole(table: CaseTable, row: Row) -> Row:
    """A before image: where only the id is known, the rest is NULL, as Debezium has it."""
    return {name: row.get(name) for name in table.columns}


def _after(table: CaseTable, change: Change) -> Row:
    row = change.after or {}
    names = [name for name in table.columns if name not in change.lacking]
    return {name: _unavailable(table.columns[name]) if name in change.absent else row[name] for name in names}


def _unavailable(type_name: str) -> object:
    if type_name.endswith("[]"):
        return [PLACEHOLDER]
    return b64encode(PLACEHOLDER.encode()).decode() if type_name == "bytea" else PLACEHOLDER
