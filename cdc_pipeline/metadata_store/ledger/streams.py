"""Streams, their stream partitions, and the assignment epoch that keeps a second consumer out."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or

from cdc_pipeline.errors import RegistryError, SourceChanged, StaleEpoch, StreamMoved, UsageError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, as_record
from cdc_pipeline.metadata_store.ledger.cut import BEGINNING
from cdc_pipeline.metadata_store.ledger.lake_positions import last_boundary
from cdc_pipeline.metadata_store.ledger.records import Assignment, Stream
from cdc_pipeline.record import PARTITION_ENDED, PARTITION_NAME
from cdc_pipeline.time_slice import Label

_PARTITION, _LOG = models.stream_partition, models.source_log
IS_LIVE = ~_PARTITION.c.last_position.has_key(PARTITION_ENDED)
"""Whether more can come of a stream partition. Those that were read to their ends stay in the table for ever,
and nothing that is done often may read them."""


class Streams(OfStore):
    def register_stream(self, stream: Stream, *, stream_partitions: int) -> None:
        """Registers the stream and its partitions. Idempotent.

        Raises SourceChanged for another server, RegistryError for another number of partitions.
        """
        with self.database.transaction("stream.register") as connection:
            _insert_stream(connection, stream)
            _register_partitions(connection, stream.name, stream_partitions)

    def extend_stream(self, stream: Stream, stream_partitions: Mapping[int, str], *, surveyed_all: bool) -> None:
        """Like `register_stream`, for a source that may get more stream partitions: adds the new ones.

        `stream_partitions`: the source's name of each, or "". `surveyed_all`: also those that the source lacks now.
        Raises SourceChanged when one is gone, StreamMoved when one was registered meanwhile, or under another name.
        """
        with self.database.transaction("stream.register") as connection:
            _insert_stream(connection, stream)
            _add_partitions(connection, stream.name, stream_partitions, surveyed_all=surveyed_all)

    def add_partitions(self, name: str, stream_partitions: Collection[int]) -> None:
        """Adds those that are not registered, without the source's names: the cut that first has them has the names."""
        with self.database.transaction("stream.register") as connection:
            new = set(stream_partitions) - _known_partitions(connection, name, stream_partitions)
            if new:
                _insert_partitions(connection, name, dict.fromkeys(sorted(new), ""))

    def stream(self, name: str) -> Stream:
        """Returns the stream. Raises UsageError for a stream that is not registered."""
        with self.database.transaction("stream.read") as connection:
            return _stream(connection, name)

    def next_offset(self, name: str) -> str | None:
        """Returns the smallest next offset of the stream partitions of which more can come; None if nobody took any.

        If nothing can come of any of them, it is the end of one.
        """
        of_stream = select(_PARTITION.c.next_offset).where(
            _PARTITION.c.stream == name, _PARTITION.c.next_offset.is_not(None)
        )
        with self.database.transaction("stream.read_offset") as connection:
            offset: str | None = min(connection.scalars(of_stream.where(IS_LIVE)), default=None)
            return offset or connection.scalar(of_stream.order_by(_PARTITION.c.stream_partition).limit(1))

    def take_stream(self, name: str, *, owner: str, first_offset: str) -> Assignment:
        """Gives the stream to `owner` under a new epoch. Every earlier owner gets StaleEpoch from now on.

        Stream partitions that were read to their ends are not given, unless all were.
        `first_offset` is where reading begins in a stream partition that was never read; it is ignored for others.
        """
        with self.database.transaction("stream.take") as connection:
            rows = locked_partitions(connection, name, IS_LIVE) or locked_partitions(connection, name)
            if not rows:
                raise _unknown(name)
            everything = [row.stream_partition for row in rows]
            return assign(connection, name, rows, everything, owner=owner, first_offset=first_offset)

    def raise_alarm(
        self, name: str, alarm: str, *, owner: str | None = None, stream_partition: int | None = None
    ) -> None:
        """Records the error that stopped the consumer of the stream. The next registration clears it.

        `owner`: the consumer, where others read other stream partitions, so that only its own ones have the alarm.
        `stream_partition`: the only one that failed.
        """
        of_consumer = (_PARTITION.c.stream == name) & IS_LIVE
        if owner is not None:
            of_consumer &= _PARTITION.c.assignment_owner == owner
        if stream_partition is not None:
            of_consumer &= _PARTITION.c.stream_partition == stream_partition
        with self.database.transaction("stream.raise_alarm") as connection:
            connection.execute(update(_PARTITION).where(of_consumer).values(alarm=alarm))

    def chain_position(self, name: str) -> str:
        """Returns the chain position after the last registered cut and its late slices."""
        with self.database.transaction("stream.read_place") as connection:
            return read_chain_position(connection, name)

    def follow(self, stream: Stream) -> None:
        """Sets the stream's server and slot to those of a cut file that is newer than the store."""
        with self.database.transaction("stream.follow") as connection:
            connection.execute(
                update(models.stream).where(models.stream.c.name == stream.name).values(**asdict(stream))
            )

    def check_owner(self, assignment: Assignment) -> None:
        """Raises StaleEpoch when another owner took one of the assigned stream partitions."""
        with self.database.transaction("stream.read_owner") as connection:
            check_owner(connection, assignment)

    def stream_partitions(self, name: str) -> tuple[int, ...]:
        """Returns the numbers of the stream's partitions in rising order."""
        with self.database.transaction("stream.read_partitions") as connection:
            query = select(_PARTITION.c.stream_partition).where(_PARTITION.c.stream == name)
            return tuple(connection.scalars(query.order_by(_PARTITION.c.stream_partition)).all())

    def count_partitions(self, name: str, *, most: int) -> int:
        """Returns how many partitions the stream has, also of those that were read to their ends; at most `most`."""
        with self.database.transaction("stream.read_partitions") as connection:
            some = select(_PARTITION.c.stream_partition).where(_PARTITION.c.stream == name)
            return len(connection.scalars(some.order_by(_PARTITION.c.stream_partition).limit(most)).all())

    def progress(self, name: str, among: Collection[int] | None = None) -> dict[int, tuple[str | None, dict[str, str]]]:
        """Returns next offset and last positions by stream partition: all, or `among` some. Offset None: never read."""
        some = _of_stream(name) if among is None else _of_stream(name).where(_PARTITION.c.stream_partition.in_(among))
        with self.database.transaction("stream.read_places") as connection:
            rows = connection.execute(some).all()
        return {row.stream_partition: (row.next_offset, row.last_position) for row in rows}

    def record_source_log(self, name: str, seen: Mapping[str, Any]) -> None:
        """Records the state of the log that the stream's slot retains on the source; replaces the earlier record.

        `seen`: values by column of `cdc.source_log`. Does nothing for a stream that is not registered.
        """
        values = dict(seen) | {"seen_at": func.clock_timestamp()}
        with self.database.transaction("source_log.record") as connection:
            known = connection.scalar(select(models.stream.c.name).where(models.stream.c.name == name))
            if known is not None:
                new = insert_or(_LOG).values(stream=name, **values)
                connection.execute(new.on_conflict_do_update(index_elements=["stream"], set_=values))


def lock_stream(connection: Connection, name: str) -> None:
    """Locks the stream: until the transaction ends, no other process can register anything of it."""
    of_stream = select(models.stream.c.name).where(models.stream.c.name == name)
    # The weaker of the two locks for an update: rows that refer to the stream can be inserted meanwhile.
    connection.execute(of_stream.with_for_update(key_share=True))


def locked_partitions(
    connection: Connection, stream: str, which: ColumnElement[bool] | None = None
) -> Sequence[Row[Any]]:
    """Locks the stream, and returns its stream partitions by number: all, or those of `which`."""
    lock_stream(connection, stream)
    rows = _of_stream(stream)
    return connection.execute(rows if which is None else rows.where(which)).all()


def _of_stream(stream: str) -> Select[Any]:
    return select(_PARTITION).where(_PARTITION.c.stream == stream).order_by(_PARTITION.c.stream_partition)


def read_chain_position(connection: Connection, stream: str) -> str:
    last = last_boundary(connection, stream)
    return BEGINNING if last is None else last.chain_position


def assign(
    connection: Connection,
    stream: str,
    rows: Sequence[Row[Any]],
    stream_partitions: Collection[int],
    *,
    owner: str,
    first_offset: str,
) -> Assignment:
    """Gives stream partitions to `owner` under a new epoch. `rows`: all live ones of the stream, locked."""
    epoch = max(row.assignment_epoch for row in rows) + 1
    taken = [row for row in rows if row.stream_partition in stream_partitions]
    of_owner = (_PARTITION.c.stream == stream) & _PARTITION.c.stream_partition.in_(stream_partitions)
    connection.execute(update(_PARTITION).where(of_owner).values(assignment_epoch=epoch, assignment_owner=owner))
    connection.execute(
        update(_PARTITION).where(of_owner, _PARTITION.c.next_offset.is_(None)).values(next_offset=first_offset)
    )
    labels = [Label(start=row.label_start, end=row.label_end) for row in taken if row.label_start]
    return Assignment(
        stream=stream,
        owner=owner,
        epoch=epoch,
        next_offset={row.stream_partition: row.next_offset or first_offset for row in taken},
        label=max(labels, default=None),
        last_position={row.stream_partition: row.last_position for row in taken},
        chain_position=read_chain_position(connection, stream),
    )


def check_owner(connection: Connection, assignment: Assignment) -> Sequence[Row[Any]]:
    """Locks the stream and returns the assigned stream partitions by number. Raises StaleEpoch if one was taken.

    The owner is compared too, because a rebuilt store may count epochs from one again.
    """
    assigned = _PARTITION.c.stream_partition.in_(assignment.next_offset)
    rows = locked_partitions(connection, assignment.stream, assigned)
    for row in rows:
        if (row.assignment_owner, row.assignment_epoch) != (assignment.owner, assignment.epoch):
            raise StaleEpoch(
                f"the stream {assignment.stream}, stream partition {row.stream_partition}, belongs to"
                f" {row.assignment_owner} with epoch {row.assignment_epoch}",
                expected=f"epoch {assignment.epoch} of {assignment.owner}",
                remedy="stop this consumer: nothing of its cut was registered",
            )
    return rows


def _insert_stream(connection: Connection, stream: Stream) -> None:
    connection.execute(insert_or(models.stream).values(**asdict(stream)).on_conflict_do_nothing())
    known = _stream(connection, stream.name)
    if known != stream:
        raise SourceChanged(
            f"the stream {stream.name} comes from {_source(stream)}",
            expected=_source(known),
            remedy="point the pipeline at the server it was set up with, or give it a new name and snapshot",
        )


def _stream(connection: Connection, name: str) -> Stream:
    row = connection.execute(select(models.stream).where(models.stream.c.name == name)).one_or_none()
    if row is None:
        raise _unknown(name)
    return as_record(Stream, row)


def _register_partitions(connection: Connection, name: str, stream_partitions: int) -> None:
    known = _known_partitions(connection, name)
    if not known:
        _insert_partitions(connection, name, dict.fromkeys(range(stream_partitions), ""))
    elif len(known) != stream_partitions:
        raise RegistryError(
            f"{stream_partitions} stream partitions are asked for the stream {name}",
            expected=f"{len(known)}, as it began",
            remedy="keep the number: the hash that fans records out depends on it",
        )


def _add_partitions(connection: Connection, name: str, wanted: Mapping[int, str], *, surveyed_all: bool) -> None:
    known = _known_partitions(connection, name)
    missing = known - wanted.keys()
    if missing and surveyed_all:
        raise StreamMoved(
            f"the stream partition {min(missing)} of the stream {name} was registered meanwhile",
            remedy="the source is surveyed again",
        )
    if missing:
        raise SourceChanged(
            f"the stream {name} has no stream partition {min(missing)} any more",
            expected=f"the stream partitions {sorted(known)}",
            remedy="bring it back: what was not read of it yet is missing",
        )
    query = select(_PARTITION.c.stream_partition, _PARTITION.c.last_position[PARTITION_NAME].astext)
    for number, found in connection.execute(query.where(_PARTITION.c.stream == name)):
        if found and wanted[number] and found != wanted[number]:
            raise StreamMoved(
                f"the stream partition {number} of the stream {name} is {found}, and was to be {wanted[number]}",
                remedy="another consumer numbered new ones meanwhile: the source is surveyed again",
            )
    if wanted.keys() - known:
        _insert_partitions(connection, name, {number: wanted[number] for number in sorted(wanted.keys() - known)})


def _known_partitions(connection: Connection, name: str, among: Collection[int] | None = None) -> set[int]:
    """Locks the stream, and returns the numbers of its partitions: all, or those `among` some."""
    lock_stream(connection, name)
    known = select(_PARTITION.c.stream_partition).where(_PARTITION.c.stream == name)
    return set(connection.scalars(known if among is None else known.where(_PARTITION.c.stream_partition.in_(among))))


def _insert_partitions(connection: Connection, name: str, named: Mapping[int, str]) -> None:
    rows = [
        {"stream": name, "stream_partition": number, "last_position": {PARTITION_NAME: text} if text else {}}
        for number, text in named.items()
    ]
    connection.execute(insert(_PARTITION), rows)


def _source(stream: Stream) -> str:
    return f"system {stream.source_system_identifier}, timeline {stream.source_timeline}, slot {stream.slot}"


def _unknown(name: str) -> UsageError:
    return UsageError(f"there is no stream {name}", remedy="run cdc setup-source, then start the consumer")
