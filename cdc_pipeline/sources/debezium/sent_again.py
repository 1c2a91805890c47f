"""Events that are sent again, and how they differ from those of another server, which has a log of its own."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import Operation
from cdc_pipeline.sources.debezium.changes import Change, delete_of, is_other_half
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Fields
from cdc_pipeline.sources.debezium.memory import PartitionMemory
from cdc_pipeline.sources.debezium.one_line import attempt
from cdc_pipeline.sources.debezium.partition import Line
from cdc_pipeline.sources.debezium.rows import DELETING, Versions
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.sources.debezium.versions import encode_place, is_exact, source_position

_CONTENT = ("op", "before", "after")
_WRITING = (Operation.INSERT, Operation.UPDATE, Operation.MOVE)
_MOST_IDS = 100_000
_READ_AT = ("ts_ms", "ts_us", "ts_ns")


def why_skipped(
    event: EnvelopeEvent,
    memory: PartitionMemory,
    own: int,
    table: str,
    others: Iterable[PartitionMemory] | None,
    *,
    keyless: bool,
    in_order: bool,
) -> str | None:
    """Returns why an event changes no row, None if it may. `others`: as for `check_server`."""
    if in_order:
        check_server(event, memory, own, table, others)
    if keyless and is_repeated(event, memory, in_order=in_order):
        return "row that was sent twice"
    if event.operation == "u":
        if memory.has_updates and event.lacks_document:
            return "update of a document that was deleted by then"
        memory.has_updates = memory.has_updates or event.after is not None
    return None


def is_repeated(event: EnvelopeEvent, memory: PartitionMemory, *, in_order: bool) -> bool:
    """Returns whether a line of a keyless table was delivered before, so that its row would count twice.

    Decides by the event's position in the source's log, which never falls in a log that is sent once. Rows that one
    statement wrote may share a position, such as those of COPY: of those that are equal, one counts, whatever else
    `source` says, such as another version of the connector. Rows of a snapshot have one position and one `source`; each
    has the time at which it was read. `in_order`: the lines are in order.
    """
    position = source_position(event)
    if position == 0:
        return False
    if not in_order or event.is_of_snapshot or not is_exact(event):
        names = (*_CONTENT, "source", *_distinguishing(event))
        return memory.event is not None and _values(memory.event, names) == _values(event, names)
    block = event.value.get("transaction")
    order = block.get("total_order") if isinstance(block, dict) else None
    identity = repr(_values(event, _CONTENT))
    return memory.is_repeated_at(position, identity, order if type(order) is int and order > 0 else 0)


def distinction(event: EnvelopeEvent) -> list[object]:
    """Returns what distinguishes equal events of a keyless table at one place, and is equal if one is sent again."""
    return [value for value in _values(event, _distinguishing(event)) if value is not None]


def check_server(
    event: EnvelopeEvent, memory: PartitionMemory, own: int, table: str, others: Iterable[PartitionMemory] | None
) -> None:
    """Records the server of MySQL or MariaDB that wrote an event.

    Raises SourceError for a new one whose positions are below those of the others: they cannot be compared. `others`:
    what is known of the table in each stream partition; None if the order of the lines decides. Then such a server is
    recorded too: in several stream partitions, which there may be later, it is refused. So is one below places without
    a known server, as earlier versions left them. If it only sends again, it counts as theirs once it has passed them.
    """
    server = event.source.get("server_id")
    if type(server) is not int or server <= 0 or server in memory.servers or event.is_of_snapshot:
        return
    lower = (each for each in others or () if -server in each.servers)
    passed = (each for each in (memory, *lower) if own < each.position and (each.servers or others is None))
    known = next(passed, None) if is_exact(event) else None
    if known is None:
        memory.servers = (*(each for each in memory.servers if each != -server), server)
    elif others is not None:
        before = ", ".join(str(each) for each in known.servers if each > 0) or "before"
        raise SourceError(
            f"events of {table} come from the server {server}, at lower places in its log than those before",
            expected=f"the log of the server {before}",
            remedy="begin a new pipeline with events of the new server, which has a snapshot of its rows first",
        )
    elif -server not in memory.servers:
        memory.servers += (-server,)


def version_elsewhere(event: EnvelopeEvent, own: int, place: int, before_it: EnvelopeEvent | None) -> str:
    """Returns the version at which a line that is sent again deletes rows of other stream partitions, "" for its own.

    Their rows may be newer than the line, though not newer than what its stream partition has reached.
    """
    if event.operation not in "ct" or event.is_of_snapshot or not is_exact(event):
        return ""
    if before_it is not None and before_it.operation == "d" and source_position(before_it) == own:
        return ""  # both halves of a key change are here, so the order of the lines decides
    return encode_place(own, place)


def without_done(changes: tuple[Change, ...], earlier: str, horizon: str) -> tuple[Change, ...]:
    """Returns the changes without what deletes at a version `earlier` below the horizon: that was done before."""
    is_done = earlier and earlier < horizon
    return tuple(each for each in changes if each.operation not in DELETING) if is_done else changes


def versions_aside(line: Line, known: int, before_it: EnvelopeEvent | None, *, alone: bool) -> Versions:
    """Returns the version of a line that is quarantined, and as `version_elsewhere` that of what it deletes.

    `known`: the position that its stream partition has reached.
    """
    place, event = line.raw.place, line.event
    own = None if event is None else attempt(partial(source_position, event))
    if event is None or not isinstance(own, int):
        return encode_place(known, place), ""
    is_again = own < known and not alone
    return encode_place(max(known, own), place), version_elsewhere(event, own, place, before_it) if is_again else ""


def changes_again(
    event: EnvelopeEvent,
    changes: tuple[Change, ...],
    layout: Layout,
    memory: PartitionMemory,
    following: Callable[[], EnvelopeEvent | None],
) -> tuple[Change, ...]:
    """Returns the changes of a line that is sent again, or at the place of the one before it, in several partitions.

    The delete event of a key change becomes a delete if its row was written there, or may have been: that row has a
    version above the create event's, which deletes at its own place in the log if it is in another stream partition.
    `following`: returns the next event. If it is that create event, the order of the lines decides.

    At the place that was reached before a restart, any row may have been written. If it was not, values that the create
    event leaves out are lost, and the new row is hidden and counted. Without the delete the old row could stay.
    """
    if layout.schema.is_keyless:
        return changes
    if event.operation == "d" and not changes:
        delete = delete_of(event, layout)
        is_near = is_exact(event) or source_position(event) == memory.position
        written = memory.written_again
        may_stand = is_near and (written is None or _id_of(delete.values, layout) in written)
        return (delete,) if may_stand and not is_other_half(following(), event, layout) else ()
    _note_changes(changes, layout, memory)
    return changes


def begin_place(event: EnvelopeEvent, changes: tuple[Change, ...], layout: Layout, memory: PartitionMemory) -> None:
    """Forgets which rows were written again, at an event that is sent first. Later ones may share an inexact place."""
    memory.end_again()
    if not (layout.schema.is_keyless or is_exact(event)):
        _note_changes(changes, layout, memory)


def begin_places(
    events: Sequence[EnvelopeEvent],
    rows: Sequence[Fields],
    positions: Sequence[int],
    layout: Layout,
    memory: PartitionMemory,
) -> None:
    """Does the same for events that each write a row, before the memory has their `positions`, which never fall.

    Rows count at the highest place so far, also those that are sent again: their versions have it.
    """
    has_exact = is_exact(events[0])
    if has_exact or positions[-1] > memory.position:
        memory.end_again()
    if not has_exact:
        _note_rows(rows[bisect_left(positions, positions[-1]) :], layout, memory)


def _note_changes(changes: tuple[Change, ...], layout: Layout, memory: PartitionMemory) -> None:
    _note_rows([change.values for change in changes if change.operation in _WRITING], layout, memory)


def _note_rows(rows: Sequence[Fields], layout: Layout, memory: PartitionMemory) -> None:
    if memory.written_again is not None:
        memory.written_again.update(_id_of(row, layout) for row in rows)
        if len(memory.written_again) > _MOST_IDS:
            memory.written_again = None


def _id_of(row: Fields, layout: Layout) -> str:
    return repr([row.get(name) for name in layout.schema.key])


def _distinguishing(event: EnvelopeEvent) -> tuple[str, ...]:
    return ("transaction", *(_READ_AT if event.is_of_snapshot else ()))


def _values(event: EnvelopeEvent, names: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(map(event.value.get, names))
