"""Turns a Debezium event into the changes of its table's rows. Values stay as they are in the file."""

from collections.abc import Iterable, Sequence

import msgspec

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import Operation, TableName
from cdc_pipeline.sources.debezium.envelope import OLD_KEY, EnvelopeEvent, Fields
from cdc_pipeline.sources.debezium.layout_checks import refuse_dropped_columns
from cdc_pipeline.sources.debezium.mongodb import MONGODB
from cdc_pipeline.sources.debezium.one_line import Undecodable, is_spelled_alike
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.types import PLACEHOLDER_TEXTS, is_placeholder, parse_debezium

_POSTGRES = "postgresql"
_WITHOUT_PLACEHOLDERS = frozenset({"dms", "datastream", "dynamodb"})
"""Writers that are not Debezium. Rows of one's own (`upserts`) may come from it."""
PLACEHOLDERS = frozenset(PLACEHOLDER_TEXTS)


class Change(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One change, which becomes one row of a slice file.

    A column that `values` lacks is absent if it is in `absent`; otherwise it is NULL.
    """

    operation: Operation
    values: Fields = msgspec.field(default_factory=dict)
    absent: tuple[str, ...] = ()
    old_id: Fields = msgspec.field(default_factory=dict)


def changes_of(
    event: EnvelopeEvent,
    layout: Layout,
    *,
    before_it: EnvelopeEvent | None,
    alone: bool,
    columns: frozenset[str] | None = None,
) -> tuple[Change, ...]:
    """Returns the changes of one event.

    Debezium writes a key change as two events. The one that has both ids gives two changes, the other one gives none.
    `before_it`: the event of the same table and transaction right before this one. `alone`: the stream has one
    partition; of a table with an id, also that the event is beyond all places in the log that were read before, and is
    not replayed. `columns`: those that a keyless table had when the event came, None for all. Raises Undecodable for an
    event without its row, SourceError for a keyless table without the old row.
    """
    if event.operation == "t":
        return (Change(operation=Operation.TRUNCATE),)
    if not layout.schema.key:
        return tuple(_of_keyless(event, layout, columns, alone=alone))
    if event.operation == "d":
        return _delete(event, layout, before_it)
    after = event.after
    if after is None:
        shown = "its document was deleted by then, or capture.mode leaves it out" if event.lacks_document else ""
        raise Undecodable(f"has no after: {shown or 'the row is missing'}")
    if after.keys() == layout.known_names and is_plain(event, after, layout, before_it=before_it):
        return (Change(operation=Operation.UPDATE if event.operation == "u" else Operation.INSERT, values=after),)
    return shown_changes(event, after, layout, before_it=before_it, alone=alone)


def shown_changes(
    event: EnvelopeEvent, after: Fields, layout: Layout, *, before_it: EnvelopeEvent | None, alone: bool
) -> tuple[Change, ...]:
    """Returns the changes of an insert or update of a table with an id, by looking at each value of the event.

    The create of a key change may keep the lake's id, of which the source's key has more or other columns. It is an
    update then: it, too, may leave values out.
    """
    new_id = _id_in(after, layout) or _id_in({**(event.key or {}), **after}, layout) or {}
    old_id = _old_id(event, layout, before_it)
    if old_id is None and event.operation == "u":
        _refuse_hidden_id(event, layout)
        _refuse_half_id(event, new_id, layout)
    moved = old_id is not None and not _is_same(old_id, new_id, layout)
    is_half = event.headers is not None and OLD_KEY in event.headers
    is_update = event.operation == "u" or (is_half and old_id is not None)
    hidden = _may_hide_values(event, moved=moved or is_half, alone=alone)
    here = {name: after[name] for name in layout.names if name in after}
    absent = [name for name, value in here.items() if hidden and _is_hidden(event, name, value, layout)]
    if event.source.get("connector") == MONGODB:
        here = {name: here.get(name) for name in layout.names}  # a document shows all the fields that it has
    elif is_update or moved:
        absent += [name for name in layout.names if name not in after and name not in new_id]
    values = {**{name: value for name, value in here.items() if name not in absent}, **new_id}
    if moved and old_id is not None:
        return (
            Change(operation=Operation.DELETE, values=old_id),
            Change(operation=Operation.MOVE, values=values, absent=tuple(absent), old_id=old_id),
        )
    partial = is_update or bool(absent)
    return (Change(operation=Operation.UPDATE if partial else Operation.INSERT, values=values, absent=tuple(absent)),)


def is_plain(event: EnvelopeEvent, after: Fields, layout: Layout, *, before_it: EnvelopeEvent | None) -> bool:
    """Returns whether an event that has every column surely hides no value and keeps its id, as most events do.

    Then its row is the change. `shown_changes` decides about the others.
    """
    if event.headers and OLD_KEY in event.headers:
        return False
    if event.operation == "u":
        key, before = event.key, event.before
        shows_id = key is None or layout.key_names <= key.keys()
        names = layout.schema.key
        keeps_id = before is None or all(is_spelled_alike(before.get(name), after[name]) for name in names)
        if not (shows_id and keeps_id):
            return False
    elif before_it is not None and before_it.operation == "d":
        return False
    elif not _may_hide_values(event, moved=False, alone=False):
        return True
    try:
        return PLACEHOLDERS.isdisjoint(after.values())
    except TypeError:  # a list or an object, which cannot be in a set
        return False


def is_key_change(first: EnvelopeEvent, second: EnvelopeEvent) -> bool:
    """Returns whether a delete and the create right after it come from one key change, in files without headers.

    Both are of one table, which has an id. Only the create of a key change leaves values out. If no value is left out,
    the two events need no special treatment: applied one by one, they give the same rows.
    """
    if (first.operation, second.operation) != ("d", "c") or second.headers is not None:
        return False
    places = [(event.source.get("lsn"), event.source.get("txId")) for event in (first, second)]
    if places[0][0] is None or places[0] != places[1]:
        return False
    return any(map(is_placeholder, (second.after or {}).values()))


def _delete(event: EnvelopeEvent, layout: Layout, before_it: EnvelopeEvent | None) -> tuple[Change, ...]:
    """Returns the delete; none for the delete event of a key change, whose create event says everything.

    Nor for the tombstone right after that. Without it the tombstone deletes the row: compaction may have left nothing
    else of the key change.
    """
    delete = delete_of(event, layout)
    if _id_in(event.new_key, layout) is None:
        return (delete,)
    is_known = before_it is not None and before_it.operation == "d" and delete_of(before_it, layout) == delete
    return (delete,) if event.is_tombstone and not is_known else ()


def delete_of(event: EnvelopeEvent, layout: Layout) -> Change:
    """Returns the delete of the row that a delete event names, whether it is of a key change or not.

    Without a column of the id it is quarantined with the column's name.
    """
    row = {**(event.key or {}), **(event.before or {})}
    return Change(operation=Operation.DELETE, values={name: row[name] for name in layout.schema.key if name in row})


def is_other_half(following: EnvelopeEvent | None, event: EnvelopeEvent, layout: Layout) -> bool:
    """Returns whether `following` is the create event of the key change that the delete event `event` is of."""
    old_id = None if following is None else _id_in(following.old_key, layout)
    return old_id is not None and old_id == delete_of(event, layout).values


def _old_id(event: EnvelopeEvent, layout: Layout, before_it: EnvelopeEvent | None) -> Fields | None:
    """Returns the id that the row had before, None if the event does not have it."""
    keyed = _id_in(event.old_key, layout)
    if keyed is not None:
        return keyed
    if event.operation == "u":
        old_id = _id_in(event.before, layout)
        return old_id if old_id and all(value is not None for value in old_id.values()) else None
    if before_it is not None and is_key_change(before_it, event):
        return _id_in({**(before_it.key or {}), **(before_it.before or {})}, layout)
    return None


def _is_same(old_id: Fields, new_id: Fields, layout: Layout) -> bool:
    """Returns whether two ids are one in the lake, however the event spells their values."""
    return old_id.keys() == new_id.keys() and all(
        is_spelled_alike(old_id[column.name], new_id[column.name])
        or _is_one([old_id[column.name], new_id[column.name]], column.type, layout.fields.get(column.name))
        for column in layout.schema.key_columns
    )


def _is_one(pair: Sequence[object], type_name: str, field: Fields | None) -> bool:
    parsed = parse_debezium(pair, type_name, field)
    return parsed.unfit is None and parsed.values[0].equals(parsed.values[1])


def _refuse_hidden_id(event: EnvelopeEvent, layout: Layout) -> None:
    """Raises SourceError for an update that could have changed the id without showing it: the old row would stay."""
    outside = [] if event.key is None else [name for name in layout.schema.key if name not in event.key]
    table, gone = layout.table, [name for name in outside if name in layout.gone]
    if gone:
        raise SourceError(
            f"an update of {table} came without {gone[0]}, which is of its id: its events lack that column by now",
            expected="rows with the columns of the id, as they are called in the lake",
            remedy=f"read the events again under another name and lake, with the present columns as id of {table}",
        )
    if outside:
        raise SourceError(
            f"an update of {table} came without the old {outside[0]}, which is of its id and not of the event's key",
            expected="rows before with the id, or events whose key has the id",
            remedy=f"make id of {table} the columns of the key, or {_whole_old_rows(event, table)}",
        )


def _refuse_half_id(event: EnvelopeEvent, new_id: Fields, layout: Layout) -> None:
    """Raises SourceError for an update whose old row shows another id, and not all of it: the old row would stay."""
    for column in layout.schema.key_columns:
        pair = [(event.before or {}).get(column.name), new_id.get(column.name)]
        if None in pair or is_spelled_alike(*pair) or _is_one(pair, column.type, layout.fields.get(column.name)):
            continue
        raise SourceError(
            f"an update of {layout.table} changed {column.name}, which is of its id, and came without the whole old id",
            expected="rows before with every column of the id",
            remedy=_whole_old_rows(event, layout.table),
        )


def _whole_old_rows(event: EnvelopeEvent, table: TableName) -> str:
    """Returns what makes the source log whole rows before changes."""
    match event.source.get("connector", _POSTGRES):
        case "mysql" | "mariadb":
            return "set binlog_row_image = FULL in the source"
        case "postgresql":
            return f"run ALTER TABLE {table.sql} REPLICA IDENTITY FULL"
    return "have the source log whole old rows"


def _may_hide_values(event: EnvelopeEvent, *, moved: bool, alone: bool) -> bool:
    """Returns whether the source may leave values out of such an event. If not, a placeholder is a real value.

    PostgreSQL does so in updates and in the create event of a key change. A create without headers does not show
    whether it belongs to a key change, whose delete event may be in another stream partition or in an earlier run. It
    belongs to none if it is `alone`. Other sources may leave large values out of any row.
    """
    if event.source.get("connector") in _WITHOUT_PLACEHOLDERS:
        return False
    if event.operation == "u" or moved or event.source.get("connector", _POSTGRES) != _POSTGRES:
        return True
    return event.operation == "c" and event.headers is None and not alone


def _is_hidden(event: EnvelopeEvent, name: str, value: object, layout: Layout) -> bool:
    """Returns whether the value is a placeholder for a value that the source left out.

    It is a real value if the old row shows the column: then PostgreSQL would have shown it in both rows.
    """
    if name in layout.schema.key or not is_placeholder(value):
        return False
    before = (event.before or {}).get(name)
    return before is None or is_placeholder(before)


def _of_keyless(
    event: EnvelopeEvent, layout: Layout, columns: frozenset[str] | None, *, alone: bool
) -> Iterable[Change]:
    if event.operation in "ud":
        if alone:
            refuse_dropped_columns(layout.table, layout.gone if columns is None else layout.gone & columns)
        yield Change(operation=Operation.DELETE, values=_whole(event, event.before, layout))
    if event.operation in "cru":
        if event.after is None:
            raise Undecodable("has no after: the row is missing")
        yield Change(operation=Operation.INSERT, values=_whole(event, event.after, layout))


def _whole(event: EnvelopeEvent, row: Fields | None, layout: Layout) -> Fields:
    if row is None or not (event.after or {}).keys() & layout.known_names <= row.keys():
        table = layout.table
        raise SourceError(
            f"an update or delete of {table}, which has no id, came without the whole old row",
            expected="an id in pipeline.yml or in the events' keys, or rows before that are whole",
            remedy=f"give id under {table}, or {_whole_old_rows(event, table)}",
        )
    known = {name: value for name, value in row.items() if name in layout.names}
    if _may_hide_values(event, moved=False, alone=True):
        hidden = next((name for name, value in known.items() if _is_hidden(event, name, value, layout)), None)
        if hidden is not None:
            raise Undecodable(f"leaves out the value of {hidden}, and its table has no id")
    return known


def _id_in(row: Fields | None, layout: Layout) -> Fields | None:
    """Returns the id's columns of the row, None if the row lacks one of them."""
    if row is None:
        return None
    try:
        return {name: row[name] for name in layout.schema.key}
    except KeyError:
        return None
