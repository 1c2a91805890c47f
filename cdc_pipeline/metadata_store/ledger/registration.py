"""A cut of a stream -> numbered slices: the one transaction that makes slice files exist."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from cdc_pipeline.errors import RegistryError, SliceFork
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.ledger.cut import Cut, PartitionRange, Slice, slice_identity
from cdc_pipeline.metadata_store.ledger.gaps import mark_gaps
from cdc_pipeline.metadata_store.ledger.records import Boundary
from cdc_pipeline.metadata_store.ledger.streams import check_owner, locked_partitions
from cdc_pipeline.metadata_store.ledger.tombstone_horizon import check_tombstone_horizons
from cdc_pipeline.time_slice import Label

_PARTITION, _FILE, _BOUNDARY, _SLICE, _TABLE = (
    models.stream_partition,
    models.source_file,
    models.boundary,
    models.slice_table,
    models.source_table,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    database: Database

    def register(self, cut: Cut) -> Boundary:
        """Durable on return: boundary, slices with their numbers, next offsets, watermark, label, quarantine.

        The same cut again gives the same boundary. Raises StaleEpoch for another owner's stream, SliceFork when
        the range holds other content, RegistryError when the offsets do not go on where the last cut ended.
        Numbers of a table rise with the stream partition inside a cut. A table without events gets no number: it is
        only known as read up to here. A cut without an epoch was decided by a cut
        file: it is registered for whoever owns the stream, and may begin a stream that nobody took yet.
        """
        with self.database.transaction("registry.register") as connection:
            partitions = _locked_partitions(connection, cut)
            tables = _locked_tables(connection, cut)
            uuids = {table_id: row.table_uuid for table_id, row in tables.items()}
            slices = [_slice_values(cut, new, uuids) for new in _in_order(cut)]
            known = connection.execute(
                select(_BOUNDARY).where(_BOUNDARY.c.stream == cut.stream, _BOUNDARY.c.position == cut.position)
            ).one_or_none()
            if known is not None and cut.requested and cut.is_empty:
                _check_goes_on(connection, cut, partitions)
                return _request(connection, known.boundary_id)
            if known is not None:
                _check_repeated(connection, known.boundary_id, slices, cut, partitions)
                return Boundary(**known._asdict())
            _check_goes_on(connection, cut, partitions)
            check_tombstone_horizons(cut.slices, {table_id: row.horizon for table_id, row in tables.items()})
            mark_gaps(connection, cut, {row.stream_partition: row.next_offset for row in partitions})
            boundary = _insert_boundary(connection, cut, partitions)
            _insert_slices(
                connection, boundary, slices, {table_id: row.next_slice_number for table_id, row in tables.items()}
            )
            _move_partitions(connection, cut, boundary)
            _follow_tables(connection, cut)
            _insert_quarantined(connection, cut)
            if cut.epoch is None:
                _replace_begun(connection, cut)
        return boundary


def _locked_partitions(connection: Connection, cut: Cut) -> Sequence[Row[Any]]:
    """Those of a cut that is decided already may have become more since."""
    named = sorted(part.stream_partition for part in cut.partitions)
    if cut.epoch is None:
        rows = [row for row in locked_partitions(connection, cut.stream) if row.stream_partition in named]
    else:
        rows = list(check_owner(connection, cut.stream, cut.owner, cut.epoch))
    if named != [row.stream_partition for row in rows]:
        raise RegistryError(
            f"the cut of {cut.stream} names the stream partitions {named}",
            expected=f"{[row.stream_partition for row in rows]}, each once",
        )
    return rows


def _locked_tables(connection: Connection, cut: Cut) -> dict[int, Row[*tuple[Any, ...]]]:
    table_ids = sorted({*cut.tables, *(new.table_id for new in cut.slices)})
    rows = connection.execute(
        select(_TABLE.c.table_id, _TABLE.c.table_uuid, _TABLE.c.next_slice_number, _TABLE.c.horizon)
        .where(_TABLE.c.table_id.in_(table_ids), _TABLE.c.stream == cut.stream)
        .order_by(_TABLE.c.table_id)
        .with_for_update()
    ).all()
    if len(rows) != len(table_ids):
        unknown = sorted(set(table_ids) - {row.table_id for row in rows})
        raise RegistryError(f"the cut names the tables {unknown}", expected=f"tables of the stream {cut.stream}")
    return {row.table_id: row for row in rows}


def _in_order(cut: Cut) -> list[Slice]:
    return sorted(cut.slices, key=lambda new: (new.table_id, new.stream_partition))


def _slice_values(cut: Cut, new: Slice, uuids: dict[int, UUID]) -> dict[str, Any]:
    part = _range_of(cut, new.stream_partition)
    return {
        **new.values(),
        "start_offset": part.start_offset,
        "end_offset": part.end_offset,
        "label_start": cut.label.start,
        "label_end": cut.label.end,
        "slice_id": slice_identity(
            table_uuid=uuids[new.table_id],
            stream_partition=new.stream_partition,
            start_offset=part.start_offset,
            end_offset=part.end_offset,
            sha256=new.sha256,
        ),
    }


def _range_of(cut: Cut, stream_partition: int) -> PartitionRange:
    for part in cut.partitions:
        if part.stream_partition == stream_partition:
            return part
    raise RegistryError(f"a slice lies in stream partition {stream_partition}", expected="one that the cut names")


def _check_repeated(
    connection: Connection, boundary_id: int, slices: list[dict[str, Any]], cut: Cut, partitions: Sequence[Row[Any]]
) -> None:
    of_cut = select(_SLICE).where(_SLICE.c.boundary_id == boundary_id, _SLICE.c.late.is_(False))
    rows = connection.execute(of_cut).all()
    known = {(row.table_id, row.stream_partition): row for row in rows}
    wanted = {(new["table_id"], new["stream_partition"]): new for new in slices}
    is_moved = any(
        getattr(known[place], name) != wanted[place][name]
        for place in known.keys() & wanted.keys()
        for name in ("start_offset", "end_offset")
    )
    ends = {part.stream_partition: part.end_offset for part in cut.partitions}
    is_last = cut.epoch is None or ends == {row.stream_partition: row.next_offset for row in partitions}
    if is_moved or not is_last:
        raise RegistryError(
            f"the position {cut.position} of {cut.stream} is registered with {len(known)} slices of other ranges",
            expected="ranges that begin at the registered next offsets",
            remedy="take the stream again and go on at its next offsets",
        )
    registered = {place: row.slice_id for place, row in known.items()}
    told = {place: new["slice_id"] for place, new in wanted.items()}
    forks = sorted(place for place in known.keys() | wanted.keys() if registered.get(place) != told.get(place))
    if forks:
        table_id, stream_partition = forks[0]
        raise SliceFork(
            f"table {table_id}, stream partition {stream_partition} at {cut.position} is registered with other content",
            expected="the same bytes for the same range",
            remedy="the registered file stands; find out why the same events gave other bytes",
        )


def _check_goes_on(connection: Connection, cut: Cut, partitions: Sequence[Row[Any]]) -> None:
    next_offsets = {row.stream_partition: row.next_offset for row in partitions}
    for part in cut.partitions:
        registered = next_offsets[part.stream_partition]
        if cut.epoch is None and _is_apart(part, registered):
            continue
        if registered != part.start_offset or part.end_offset < part.start_offset:
            raise RegistryError(
                f"the cut of {cut.stream}, stream partition {part.stream_partition}, is"
                f" [{part.start_offset}, {part.end_offset})",
                expected=f"a start at the registered next offset {registered}",
                remedy="take the stream again and go on at its next offsets",
            )
    last = connection.scalar(select(func.max(_BOUNDARY.c.position)).where(_BOUNDARY.c.stream == cut.stream))
    if last is not None and cut.position < last:
        raise RegistryError(f"the cut of {cut.stream} is at {cut.position}", expected=f"a position behind {last}")
    labels = [Label(start=row.label_start, end=row.label_end) for row in partitions if row.label_start is not None]
    if labels and cut.label < max(labels):
        raise RegistryError(f"the cut of {cut.stream} has the label {cut.label}", expected=f"{max(labels)} or later")


def _is_apart(part: PartitionRange, registered: str | None) -> bool:
    """Of a cut that was decided: behind a place where the stream began again, or before it, by a consumer that died."""
    return registered is None or part.start_offset > registered or part.end_offset <= registered


def _insert_boundary(connection: Connection, cut: Cut, partitions: Sequence[Row[Any]]) -> Boundary:
    """Commit times may step back by a little from transaction to transaction; a watermark never does."""
    times = [cut.commit_time, *(row.watermark for row in partitions if row.watermark is not None)]
    row = connection.execute(
        insert(_BOUNDARY)
        .values(
            stream=cut.stream,
            position=cut.position,
            commit_time=max(times),
            label_start=cut.label.start,
            label_end=cut.label.end,
            requested=cut.requested,
        )
        .returning(_BOUNDARY)
    ).one()
    return Boundary(**row._asdict())


def _request(connection: Connection, boundary_id: int) -> Boundary:
    """No claim reaches over it yet: nothing is registered behind it while the stream is locked."""
    row = connection.execute(
        update(_BOUNDARY).where(_BOUNDARY.c.boundary_id == boundary_id).values(requested=True).returning(_BOUNDARY)
    ).one()
    return Boundary(**row._asdict())


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
    connection.execute(
        update(_TABLE).where(_TABLE.c.table_id == bindparam("of_table")).values(next_slice_number=bindparam("number")),
        [{"of_table": table_id, "number": number} for table_id, number in next_numbers.items()],
    )
    newest = {values["table_id"]: values["schema_id"] for values in slices if values["schema_id"] is not None}
    if newest:
        connection.execute(
            update(_TABLE).where(_TABLE.c.table_id == bindparam("of_table")).values(schema_id=bindparam("newest")),
            [{"of_table": table_id, "newest": schema_id} for table_id, schema_id in newest.items()],
        )


def _move_partitions(connection: Connection, cut: Cut, boundary: Boundary) -> None:
    connection.execute(
        update(_PARTITION)
        .where(_PARTITION.c.stream == cut.stream, _PARTITION.c.stream_partition == bindparam("part"))
        .values(
            next_offset=func.greatest(_PARTITION.c.next_offset, bindparam("end")),
            watermark=boundary.commit_time,
            label_start=cut.label.start,
            label_end=cut.label.end,
            last_position=bindparam("last"),
            alarm=None,
        ),
        [
            {"part": part.stream_partition, "end": part.end_offset, "last": dict(part.last_position)}
            for part in cut.partitions
        ],
    )


def _follow_tables(connection: Connection, cut: Cut) -> None:
    """Without a row per table and cut: a table that nobody writes to costs one update in place."""
    connection.execute(update(_TABLE).where(_TABLE.c.table_id.in_(cut.tables)).values(followed_at=cut.position))


def _insert_quarantined(connection: Connection, cut: Cut) -> None:
    rows = []
    for number, event in enumerate(cut.quarantined):
        part = _range_of(cut, event.stream_partition)
        place = {"start_offset": part.start_offset, "end_offset": part.end_offset, "place": f"{cut.position}-{number}"}
        rows.append({**asdict(event), **place})
    if cut.epoch is None:
        rows = [row | {"created_at": cut.commit_time} for row in _unknown(connection, rows)]
    if rows:
        connection.execute(insert(models.quarantine), rows)


def _unknown(connection: Connection, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A store that is rebuilt has kept its events in quarantine, with what was decided about them."""
    entry = models.quarantine.c
    places = {row["place"] for row in rows}
    query = select(entry.table_id, entry.place).where(entry.snapshot_id.is_(None), entry.place.in_(places))
    known = {(row.table_id, row.place) for row in connection.execute(query)}
    return [row for row in rows if (row["table_id"], row["place"]) not in known]


def _replace_begun(connection: Connection, cut: Cut) -> None:
    """What was begun here and in no cut is numbered again by whoever reads on."""
    for part in cut.partitions:
        if part.begun:
            of_partition = (_FILE.c.stream == cut.stream) & (_FILE.c.stream_partition == part.stream_partition)
            connection.execute(delete(_FILE).where(of_partition, _FILE.c.number >= min(part.begun)))
            files = [{"number": number, "name": name} for number, name in part.begun.items()]
            place = {"stream": cut.stream, "stream_partition": part.stream_partition}
            connection.execute(insert(_FILE), [place | file for file in files])
