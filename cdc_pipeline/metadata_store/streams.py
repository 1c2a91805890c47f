"""Streams and who reads them: an assignment epoch keeps a second consumer out."""

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or

from cdc_pipeline.errors import RegistryError, SourceChanged, UsageError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.rows import Assignment, Stream
from cdc_pipeline.time_slice import Label

_PARTITION = models.stream_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    database: Database

    def register_stream(self, stream: Stream, *, stream_partitions: int) -> None:
        """Idempotent. Raises SourceChanged for another server, RegistryError for another number of partitions."""
        with self.database.transaction("stream.register") as connection:
            connection.execute(
                insert_or(models.stream)
                .values(
                    name=stream.name,
                    source_system_identifier=stream.source_system_identifier,
                    source_timeline=stream.source_timeline,
                    slot=stream.slot,
                )
                .on_conflict_do_nothing()
            )
            known = _stream(connection, stream.name)
            if known != stream:
                raise SourceChanged(
                    f"the stream {stream.name} comes from {_source(stream)}",
                    expected=_source(known),
                    remedy="point the pipeline at the server it was set up with, or give it a new name and snapshot",
                )
            _register_partitions(connection, stream.name, stream_partitions)

    def stream(self, name: str) -> Stream:
        with self.database.transaction("stream.read") as connection:
            return _stream(connection, name)

    def next_offset(self, name: str) -> str | None:
        """The least place at which a stream partition goes on; None for a stream that nobody ever read."""
        with self.database.transaction("stream.read_offset") as connection:
            offsets = connection.scalars(select(_PARTITION.c.next_offset).where(_PARTITION.c.stream == name)).all()
        return min((offset for offset in offsets if offset is not None), default=None)

    def take_stream(self, name: str, *, owner: str, first_offset: str) -> Assignment:
        """Whoever took the stream before gets StaleEpoch from now on.

        `first_offset` is where a stream begins that nobody ever took; later it is not looked at.
        """
        with self.database.transaction("stream.take") as connection:
            rows = connection.execute(
                select(_PARTITION)
                .where(_PARTITION.c.stream == name)
                .order_by(_PARTITION.c.stream_partition)
                .with_for_update()
            ).all()
            if not rows:
                raise _unknown(name)
            epoch = max(row.assignment_epoch for row in rows) + 1
            connection.execute(
                update(_PARTITION)
                .where(_PARTITION.c.stream == name)
                .values(assignment_epoch=epoch, assignment_owner=owner)
            )
            connection.execute(
                update(_PARTITION)
                .where(_PARTITION.c.stream == name, _PARTITION.c.next_offset.is_(None))
                .values(next_offset=first_offset)
            )
        return Assignment(
            stream=name,
            epoch=epoch,
            next_offset={row.stream_partition: row.next_offset or first_offset for row in rows},
            label=max(
                (Label(start=row.label_start, end=row.label_end) for row in rows if row.label_start), default=None
            ),
        )


def _stream(connection: Connection, name: str) -> Stream:
    row = connection.execute(select(models.stream).where(models.stream.c.name == name)).one_or_none()
    if row is None:
        raise _unknown(name)
    return Stream(**row._asdict())


def _register_partitions(connection: Connection, name: str, stream_partitions: int) -> None:
    known = connection.scalars(
        select(_PARTITION.c.stream_partition).where(_PARTITION.c.stream == name).with_for_update()
    ).all()
    if not known:
        rows = [{"stream": name, "stream_partition": partition} for partition in range(stream_partitions)]
        connection.execute(insert(_PARTITION), rows)
    elif len(known) != stream_partitions:
        raise RegistryError(
            f"{stream_partitions} stream partitions are asked for the stream {name}",
            expected=f"{len(known)}, as it began",
            remedy="keep the number: the hash that fans records out depends on it",
        )


def _source(stream: Stream) -> str:
    return f"system {stream.source_system_identifier}, timeline {stream.source_timeline}, slot {stream.slot}"


def _unknown(name: str) -> UsageError:
    return UsageError(f"there is no stream {name}", remedy="run cdc setup-source, then start the consumer")
