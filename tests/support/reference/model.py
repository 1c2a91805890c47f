"""The reference: the events of a log, sorted by version and applied one after the other to a table that is a dict.

Because it sorts the whole log first it cannot care how events arrived. The lake must come out the same, wherever the
log is cut into claims and however those arrive. The rules, in one place:

- Order is the version. At one version, the new half of a key change comes before the delete of the old half.
- A row takes an event only if the event is newer than the row.
- An insert tells every column that it does not leave absent; one that its schema lacks is NULL.
- An update tells the columns that it holds. Others keep what the row has; in a row that was not there they stay
  untold, unless the update's schema lacks them: then they are NULL.
- A move is an update of the new id that also tells what it lacks or leaves absent as the old id's row has it.
- A row with an untold column is incomplete: nobody sees it until later events tell the rest.
- A delete forgets the row, or (soft) flags it and keeps its last values; of an unknown id it does nothing.
- A truncate does that to every older row. Where truncates are to be ignored, `without_truncates` drops them first.
- A table without a key is a multiset: an insert adds a row, a delete removes one equal row.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cdc_pipeline.record import Operation

Id = tuple[object, ...]
Content = tuple[tuple[str, object], ...]
"""A whole row of a keyless table: its columns in the order of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`values`: the present columns beside the id. `lacking`: columns that the event's schema does not have.

    All other columns of the table are absent: they have a value that the event does not tell. `old_id` belongs to a
    move. In a keyless table there is no id, and a delete holds the whole row too.
    """

    operation: Operation
    version: str
    id: Id = ()
    old_id: Id = ()
    values: dict[str, object] = field(default_factory=dict)
    lacking: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`values`: what is known since the last delete of the id; of a flagged row, what was known last.

    `last`: every column as it was last known, also before a delete.
    """

    version: str
    values: dict[str, object]
    deleted: bool = False
    incomplete: bool = False
    last: dict[str, object] = field(default_factory=dict, compare=False)


Table = dict[Id, Row]
KeylessRows = Counter[Content]


def apply_events(table: Table, events: Iterable[Event], *, columns: tuple[str, ...], soft: bool = False) -> Table:
    """The table after the events, as a new dict. `columns`: those beside the id.

    To a table that is not empty, apply only events that are newer than its deletes: they may have left no trace.
    """
    result = dict(table)
    for event in sorted(events, key=_order):
        row = result.get(event.id)
        if event.operation is Operation.TRUNCATE:
            older = [id_ for id_, row in result.items() if row.version < event.version]
            for id_ in older:
                _delete(result, id_, event.version, soft=soft)
        elif row is None or event.version > row.version:
            if event.operation is Operation.DELETE:
                _delete(result, event.id, event.version, soft=soft)
            else:
                result[event.id] = _told(row, event, result.get(event.old_id), columns)
    return result


def visible(table: Table) -> Table:
    return {id_: row for id_, row in table.items() if not row.deleted and not row.incomplete}


def apply_to_keyless(rows: KeylessRows, events: Iterable[Event]) -> KeylessRows:
    """The rows after the events, as a new multiset. A delete of what is not there does nothing."""
    result = rows.copy()
    for event in sorted(events, key=lambda event: (event.version, event.operation is Operation.INSERT)):
        content = tuple(sorted(event.values.items()))
        if event.operation is Operation.INSERT:
            result[content] += 1
        elif event.operation is Operation.DELETE and result[content]:
            result[content] -= 1
        elif event.operation is Operation.TRUNCATE:
            result.clear()
    return +result


def without_truncates(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.operation is not Operation.TRUNCATE]


def _order(event: Event) -> tuple[str, bool]:
    return (event.version, event.operation is Operation.DELETE)


def _told(row: Row | None, event: Event, origin: Row | None, columns: tuple[str, ...]) -> Row:
    given = dict(event.values)
    if event.operation is Operation.INSERT:
        given = dict.fromkeys(event.lacking) | given
    if event.operation is Operation.MOVE and origin is not None and not origin.deleted:
        given = origin.values | given
    known = given if row is None or row.deleted else row.values | given
    values = dict.fromkeys(event.lacking) | known
    last = given if row is None else row.values | row.last | given
    return Row(version=event.version, values=values, incomplete=not values.keys() >= set(columns), last=last)


def _delete(table: Table, id_: Id, version: str, *, soft: bool) -> None:
    row = table.pop(id_, None)
    if soft and row is not None:
        table[id_] = replace(row, version=version, deleted=True, incomplete=False, values=row.values | row.last)
