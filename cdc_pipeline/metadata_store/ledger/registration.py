"""Registers a cut in one transaction, which numbers the slices and advances the stream's offsets."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from cdc_pipeline.errors import RegistryError, SliceFork
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, as_record, batches
from cdc_pipeline.metadata_store.ledger.cut import Cut, PartitionRange, QuarantinedEvent, Slice, slice_identity
from cdc_pipeline.metadata_store.ledger.records import Assignment, Boundary
from cdc_pipeline.metadata_store.ledger.stale_tables import mark_gaps
from cdc_pipeline.metadata_store.ledger.streams import check_owner, locked_partitions
from cdc_pipeline.metadata_store.ledger.superseded_events import drop_registered_late
from cdc_pipeline.time_slice import Label

_PARTITION, _FILE, _BOUNDARY, _SLICE, _TABLE = (
    models.stream_partition,
    models.source_file,
    models.boundary,
    models.slice_table,
    models.source_table,
)


class Registration(OfStore):
    def register(self, cut: Cut, assignment: Assignment | None) -> Boundary:
        """Registers the cut. Durable on return: its boundary, numbered slices, next offsets and quarantined events.

        Within a cut, the numbers of a table rise with the stream partition. A table without events gets no number; only
        `followed_at` records that it was read. Registering the same cut again returns the same boundary. A table of the
        lake becomes stale if the cut began behind the last one of it, or has an event below its tombstone horizon.

        `assignment` None: the cut was read from a cut file, so it is already decided. It is registered without a check
        of the stream's owner, and may be the first cut of a stream without an owner.

        Raises StaleEpoch when another consumer has the stream, SliceFork when the range is registered with other
        content, RegistryError when the cut does not begin where the last one ended.
        """
        is_decided = assignment is None
        with self.database.transaction("registry.register") as connection:
            partitions = _partitions(connection, cut, assignment)
            tables = _locked_tables(connection, cut)
            slices = _slice_rows(cut, {table_id: row.table_uuid for table_id, row in tables.items()})
            known = connection.execute(
                select(_BOUNDARY).where(_BOUNDARY.c.stream == cut.stream, _BOUNDARY.c.position == cut.position)
            ).one_or_none()
            if known is not None and cut.requested and cut.is_empty:
                _check_continues(connection, cut, partitions, is_decided=is_decided)
                return _mark_requested(connection, known.boundary_id)
            if known is not None:
                _check_same(connection, known.boundary_id, slices, cut, partitions, is_decided=is_decided)
                return as_record(Boundary, known)
            _check_continues(connection, cut, partitions, is_decided=is_decided)
            too_late = {new.table_id for new in cut.slices if new.is_below(tables[new.table_id].horizon)}
            mark_gaps(connection, cut, too_late)
            boundary = _insert_boundary(connection, cut, partitions)
            next_numbers = {table_id: int(row.next_slice_number) for table_id, row in tables.items()}
            _insert_slices(connection, boundary, slices, next_numbers)
            _move_partitions(connection, cut, boundary, _last_label(cut, partitions))
            _mark_followed(connection, cut)
            _insert_quarantined(connection, cut, is_decided=is_decided)
            if is_decided:
                _replace_source_files(connection, cut)
        return boundary


def _partitions(connection: Connection, cut: Cut, assignment: Assignment | None) -> Sequence[Row[Any]]:
    """Locks the stream and returns the cut's stream partitions. A decided cut may lack those that were added later."""
    named = sorted(part.stream_partition for part in cut.partitions)
    if assignment is None:
        rows = list(locked_partitions(connection, cut.stream, _PARTITION.c.stream_partition.in_(named)))
    else:
        rows = list(check_owner(connection, assignment))
    if named != [row.stream_partition for row in rows]:
        raise RegistryError(
            f"the cut of {cut.stream} names the stream partitions {named}",
            expected=f"{[row.stream_partition for row in rows]}, each once",
        )
    return rows


def _locked_tables(connection: Connection, cut: Cut) -> dict[int, Row[*tuple[Any, ...]]]:
    """Locks the cut's tables; returns their identity, next number and horizon, by table id."""
    table_ids = sorted({*cut.tables, *(new.table_id for new in cut.slices)})
    rows = connection.execute(
        select(_TABLE.c.table_id, _TABLE.c.table_uuid, _TABLE.c.next_slice_number, _TABLE.c.horizon)
        .where(_TABLE.c.table_id.in_(table_ids), _TABLE.c.stream == cut.stream)
        .order_by(_TABLE.c.table_id)
        .with_for_update(key_share=True)  # the weaker lock for an update: claims can be recorded meanwhile
    ).all()
    if len(rows) != len(table_ids):
        unknown = sorted(set(table_ids) - {row.table_id for row in rows})
        raise RegistryError(f"the cut names the tables {unknown}", expected=f"tables of the stream {cut.stream}")
    return {row.table_id: row for row in rows}


def _slice_rows(cut: Cut, uuids: dict[int, UUID]) -> list[dict[str, Any]]:
    """Returns rows of `cdc.slice` in the order of their numbers, still without number and boundary."""
    return [
        _slice_row(cut, new, uuids[new.table_id])
        for new in sorted(cut.slices, key=lambda new: (new.table_id, new.stream_partition))
    ]


def _slice_row(cut: Cut, new: Slice, table_uuid: UUID) -> dict[str, Any]:
    part = cut.range_of(new.stream_partition)
    offsets = {"start_offset": part.start_offset, "end_offset": part.end_offset}
    slice_id = slice_identity(
        table_uuid=table_uuid, stream_partition=new.stream_partition, sha256=new.sha256, **offsets
    )
    label = {"label_start": cut.label.start, "label_end": cut.label.end}
    return {**new.columns(), **offsets, **label, "slice_id": slice_id}


def _check_same(
    connection: Connection,
    boundary_id: int,
    slices: list[dict[str, Any]],
    cut: Cut,
    partitions: Sequence[Row[Any]],
    *,
    is_decided: bool,
) -> None:
    """Checks a cut at a position where a cut is registered: ranges and content have to be the same."""
    of_cut = select(_SLICE).where(_SLICE.c.boundary_id == boundary_id, _SLICE.c.late.is_(False))
    registered = {(row.table_id, row.stream_partition): row for row in connection.execute(of_cut)}
    repeated = {(row["table_id"], row["stream_partition"]): row for row in slices}
    is_moved = any(
        getattr(registered[key], name) != repeated[key][name]
        for key in registered.keys() & repeated.keys()
        for name in ("start_offset", "end_offset")
    )
    ends = {part.stream_partition: part.end_offset for part in cut.partitions}
    is_last = is_decided or ends == {row.stream_partition: row.next_offset for row in partitions}
    if is_moved or not is_last:
        raise RegistryError(
            f"the position {cut.position} of {cut.stream} is registered with {len(registered)} slices of other ranges",
            expected="ranges that begin at the registered next offsets",
            remedy="take the stream again and continue at its next offsets",
        )
    registered_ids = {key: row.slice_id for key, row in registered.items()}
    repeated_ids = {key: row["slice_id"] for key, row in repeated.items()}
    forks = sorted(
        key for key in registered.keys() | repeated.keys() if registered_ids.get(key) != repeated_ids.get(key)
    )
    if forks:
        table_id, stream_partition = forks[0]
        raise SliceFork(
            f"table {table_id}, stream partition {stream_partition} at {cut.position} is registered with other content",
            expected="the same bytes for the same range",
            remedy="the registered file is used; find out why the same events gave other bytes",
        )


def _check_continues(connection: Connection, cut: Cut, partitions: Sequence[Row[Any]], *, is_decided: bool) -> None:
    """Checks that offsets, position and label continue after the last registered cut."""
    next_offsets = {row.stream_partition: row.next_offset for row in partitions}
    for part in cut.partitions:
        registered = next_offsets[part.stream_partition]
        if is_decided and _is_apart(part, registered):
            continue
        if registered != part.start_offset or part.end_offset < part.start_offset:
            raise RegistryError(
                f"the cut of {cut.stream}, stream partition {part.stream_partition}, is"
                f" [{part.start_offset}, {part.end_offset})",
                expected=f"a start at the registered next offset {registered}",
                remedy="take the stream again and continue at its next offsets",
            )
    last = connection.scalar(select(func.max(_BOUNDARY.c.position)).where(_BOUNDARY.c.stream == cut.stream))
    if last is not None and cut.position < last:
        raise RegistryError(f"the cut of {cut.stream} is at {cut.position}", expected=f"a position after {last}")
    label = _last_label(cut, partitions)
    if cut.label < label and not is_decided:  # without a decided cut, the chain could never continue
        raise RegistryError(f"the cut of {cut.stream} has the label {cut.label}", expected=f"{label} or later")


def _last_label(cut: Cut, partitions: Sequence[Row[Any]]) -> Label:
    """Returns the latest label of the cut and of those that were registered before."""
    known = (Label(start=row.label_start, end=row.label_end) for row in partitions if row.label_start is not None)
    return max([cut.label, *known])


def _is_apart(part: PartitionRange, registered: str | None) -> bool:
    """Returns whether a decided range does not contain the registered next offset.

    The range is after that offset when the stream was started again after a gap. It is before that offset when the cut
    file was put by a consumer that died before it registered the cut.
    """
    return registered is None or part.start_offset > registered or part.end_offset <= registered


def _insert_boundary(connection: Connection, cut: Cut, partitions: Sequence[Row[Any]]) -> Boundary:
    # Commit times may go back slightly from transaction to transaction; a watermark never does.
    times = [cut.commit_time, *(row.watermark for row in partitions if row.watermark is not None)]
    values = {
        "stream": cut.stream,
        "position": cut.position,
        "commit_time": max(times),
        "label_start": cut.label.start,
        "label_end": cut.label.end,
        "requested": cut.requested,
    }
    return as_record(Boundary, connection.execute(insert(_BOUNDARY).values(values).returning(_BOUNDARY)).one())


def _mark_requested(connection: Connection, boundary_id: int) -> Boundary:
    # No claim crosses this boundary: it is the last one, and nothing is registered while the stream is locked.
    marked = update(_BOUNDARY).where(_BOUNDARY.c.boundary_id == boundary_id).values(requested=True)
    return as_record(Boundary, connection.execute(marked.returning(_BOUNDARY)).one())


def _insert_slices(
    connection: Connection, boundary: Boundary, slices: list[dict[str, Any]], next_numbers: dict[int, int]
) -> None:
    if not slices:
        return
    for values in slices:
        values["boundary_id"] = boundary.boundary_id
        values["number"] = next_numbers[values["table_id"]]
        next_numbers[values["table_id"]] += 1
    connection.execute(insert(_SLICE), slices)
    newest = {values["table_id"]: values["schema_id"] for values in slices}
    of_table = update(_TABLE).where(_TABLE.c.table_id == bindparam("of_table"))
    connection.execute(
        of_table.values(next_slice_number=bindparam("number"), schema_id=bindparam("newest")),
        [
            {"of_table": table_id, "number": next_numbers[table_id], "newest": schema_id}
            for table_id, schema_id in newest.items()
        ],
    )


def _move_partitions(connection: Connection, cut: Cut, boundary: Boundary, label: Label) -> None:
    connection.execute(
        update(_PARTITION)
        .where(_PARTITION.c.stream == cut.stream, _PARTITION.c.stream_partition == bindparam("part"))
        .values(
            next_offset=func.greatest(_PARTITION.c.next_offset, bindparam("end")),
            watermark=boundary.commit_time,
            label_start=label.start,
            label_end=label.end,
            last_position=bindparam("last"),
            alarm=None,
        ),
        [
            {"part": part.stream_partition, "end": part.end_offset, "last": dict(part.last_position)}
            for part in cut.partitions
        ],
    )


def _mark_followed(connection: Connection, cut: Cut) -> None:
    # One update in place instead of a row per table and cut: most tables have no events in most cuts.
    connection.execute(update(_TABLE).where(_TABLE.c.table_id.in_(cut.tables)).values(followed_at=cut.position))


def _insert_quarantined(connection: Connection, cut: Cut, *, is_decided: bool) -> None:
    for batch in batches(cut.numbered_events()):
        rows = [_quarantined_row(cut, number, event) for number, event in batch]
        if is_decided:
            rows = [row | {"created_at": cut.commit_time} for row in _not_quarantined(connection, rows)]
        if rows:
            connection.execute(insert(models.quarantine), rows)
    drop_registered_late(connection, cut.quarantined)


def _quarantined_row(cut: Cut, number: int, event: QuarantinedEvent) -> dict[str, Any]:
    part = cut.range_of(event.stream_partition)
    offsets = {"start_offset": part.start_offset, "end_offset": part.end_offset}
    return {**asdict(event), **offsets, "place": f"{cut.position}-{number}"}


def _not_quarantined(connection: Connection, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the events that are not quarantined yet. A rebuild keeps quarantined events and their decisions."""
    event = models.quarantine.c
    query = select(event.table_id, event.place).where(
        event.snapshot_id.is_(None), event.place.in_({row["place"] for row in rows})
    )
    known = {(row.table_id, row.place) for row in connection.execute(query)}
    return [row for row in rows if (row["table_id"], row["place"]) not in known]


def _replace_source_files(connection: Connection, cut: Cut) -> None:
    """Stores the cut's source files by number. If others have these numbers, deletes those from the first one on."""
    for part in cut.partitions:
        of_partition = (_FILE.c.stream == cut.stream) & (_FILE.c.stream_partition == part.stream_partition)
        known = select(_FILE.c.number, _FILE.c.name).where(of_partition, _FILE.c.number.in_(part.begun))
        # The cut's own consumer may have begun more files, and writes none of them again.
        if part.begun and dict(connection.execute(known).all()) != part.begun:
            partition = {"stream": cut.stream, "stream_partition": part.stream_partition}
            connection.execute(delete(_FILE).where(of_partition, _FILE.c.number >= min(part.begun)))
            files = [partition | {"number": number, "name": name} for number, name in part.begun.items()]
            connection.execute(insert(_FILE), files)
