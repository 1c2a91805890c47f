"""The reference: change events, one after the other, applied to a table that is a dict.

The lake must come out the same for the same events, wherever they are cut into claims. The rules, in one place:

- Order is the version. At one version, the new half of a key change comes before the delete of the old half.
- A row takes an event only if the event is newer than the row.
- An absent column keeps what the row has; in a row that was not there it is None.
- A move is an insert whose absent columns are those of the old id's row.
- A delete forgets the row, or (soft) flags it and keeps its last values; of an unknown id it does nothing.
- A truncate does that to every older row.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cdc_pipeline.record import Operation

Id = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`values` holds the present columns beside the id; `old_id` belongs to a move."""

    operation: Operation
    version: str
    id: Id = ()
    old_id: Id = ()
    values: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    version: str
    values: dict[str, object]
    deleted: bool = False


Table = dict[Id, Row]


def apply_events(table: Table, events: Iterable[Event], *, columns: tuple[str, ...], soft: bool = False) -> Table:
    """The table after the events, as a new dict. `columns`: those beside the id."""
    result = dict(table)
    for event in sorted(events, key=_order):
        if event.operation is Operation.TRUNCATE:
            older = [id_ for id_, row in result.items() if row.version < event.version]
            for id_ in older:
                _delete(result, id_, event.version, soft=soft)
        elif _is_newer(result, event):
            if event.operation is Operation.DELETE:
                _delete(result, event.id, event.version, soft=soft)
            else:
                result[event.id] = Row(version=event.version, values=_values(result, event, columns))
    return result


def visible(table: Table) -> Table:
    return {id_: row for id_, row in table.items() if not row.deleted}


def _order(event: Event) -> tuple[str, bool]:
    return (event.version, event.operation is Operation.DELETE)


def _is_newer(table: Table, event: Event) -> bool:
    row = table.get(event.id)
    return row is None or event.version > row.version


def _values(table: Table, event: Event, columns: tuple[str, ...]) -> dict[str, object]:
    base: dict[str, object] = dict.fromkeys(columns)
    inherits_from = {Operation.MOVE: event.old_id, Operation.UPDATE: event.id}.get(event.operation)
    if inherits_from in table:
        base |= table[inherits_from].values
    return base | event.values


def _delete(table: Table, id_: Id, version: str, *, soft: bool) -> None:
    row = table.pop(id_, None)
    if soft and row is not None:
        table[id_] = replace(row, version=version, deleted=True)
