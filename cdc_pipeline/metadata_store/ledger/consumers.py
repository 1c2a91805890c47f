"""Consumers that share a stream: who is alive, and which stream partitions each of them owns."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as insert_or
from sqlalchemy.exc import SQLAlchemyError

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, streamed, translated_errors
from cdc_pipeline.metadata_store.ledger.records import Assignment
from cdc_pipeline.metadata_store.ledger.streams import IS_LIVE, assign, check_owner, lock_stream, locked_partitions

_CONSUMER, _PARTITION = models.consumer, models.stream_partition
_LOCK = "hashtextextended('cdc.consumer ' || :stream, 0)"
_READS, _READS_NO_MORE = (
    text(f"SELECT pg_advisory_lock_shared({_LOCK})"),
    text(f"SELECT pg_advisory_unlock_shared({_LOCK})"),
)
_IS_NOT_READ = text(f"SELECT pg_try_advisory_xact_lock({_LOCK})")


class Consumers(OfStore):
    """A consumer is alive until `expires_at` by the database's clock. Its stream partitions are then free.

    Ownership only spreads the work. A consumer that comes back too late gets StaleEpoch when it registers.
    """

    def beat(self, stream: str, *, owner: str, lifetime: timedelta) -> frozenset[int]:
        """Keeps the consumer alive for `lifetime` from now. Returns the stream partitions that it is to own now."""
        with self.database.transaction("consumer.beat") as connection:
            owners = _owners(locked_partitions(connection, stream, IS_LIVE))
            return fair_share(owners, owner, _alive(connection, stream, owner, lifetime))

    def take_share(
        self, stream: str, *, owner: str, lifetime: timedelta, first_offset: str, without: Collection[int] = ()
    ) -> Assignment | None:
        """Gives `owner` its share under a new epoch, and lets go of what it owns beyond that. None for no share.

        `without`: stream partitions that it keeps to itself and does not read now, since they failed.
        """
        with self.database.transaction("consumer.take_share") as connection:
            rows = locked_partitions(connection, stream, IS_LIVE)
            share = fair_share(_owners(rows), owner, _alive(connection, stream, owner, lifetime))
            _let_go(connection, stream, owner, share)
            read = share - set(without)
            if not read:
                return None
            return assign(connection, stream, rows, read, owner=owner, first_offset=first_offset)

    def leave(self, stream: str, *, owner: str) -> None:
        """Lets go of everything that the consumer owns, so that the others take it at once. Idempotent."""
        with self.database.transaction("consumer.leave") as connection:
            lock_stream(connection, stream)
            _let_go(connection, stream, owner, frozenset())
            connection.execute(delete(_CONSUMER).where(_CONSUMER.c.stream == stream, _CONSUMER.c.owner == owner))

    @contextmanager
    def reading(self, stream: str) -> Iterator[None]:
        """Lets removals notice a consumer that reads alone, until the block ends or the process dies.

        Holds a lock on a connection of its own. Waits while a removal checks the stream.
        """
        with translated_errors():
            connection = self.database.engine.connect()
        try:
            with translated_errors():
                connection.execute(_READS, {"stream": stream})
                connection.commit()
            yield
        finally:
            with suppress(SQLAlchemyError):  # A connection that is lost has lost the lock.
                connection.execute(_READS_NO_MORE, {"stream": stream})
            connection.close()

    def others(self, stream: str, *, owner: str) -> tuple[str, ...]:
        """Returns the other consumers that are alive."""
        with self.database.transaction("consumer.read") as connection:
            alive = select(_CONSUMER.c.owner).where(
                _CONSUMER.c.stream == stream,
                _CONSUMER.c.owner != owner,
                _CONSUMER.c.expires_at > func.clock_timestamp(),
            )
            return tuple(connection.scalars(alive.order_by(_CONSUMER.c.owner)).all())


def is_read(connection: Connection, stream: str) -> bool:
    """Returns whether a consumer reads the stream alone. If not, none begins to until the transaction ends."""
    return not connection.scalar(_IS_NOT_READ, {"stream": stream})


def fair_share(owners: Mapping[int, str | None], owner: str, alive: Sequence[str]) -> frozenset[int]:
    """Returns the stream partitions that `owner` should own: those it has, then free ones, up to its share.

    `owners`: by stream partition. `alive`: the consumers, with `owner`, in one order for all of them. If the number
    cannot be divided evenly, some consumers get one more. Those that already have one more come first, so that nobody
    gives one up for a newcomer.
    """
    each, rest = divmod(len(owners), len(alive))
    has = Counter(owners.values())
    most = each + (sorted(alive, key=lambda name: has[name] <= each).index(owner) < rest)
    own = [number for number, by in owners.items() if by == owner]
    free = [number for number, by in owners.items() if by not in alive]
    return frozenset([*own, *free][:most])


def _owners(rows: Sequence[Row[Any]]) -> dict[int, str | None]:
    return {row.stream_partition: row.assignment_owner for row in rows}


def _alive(connection: Connection, stream: str, owner: str, lifetime: timedelta) -> list[str]:
    """Notes that `owner` is alive; returns all consumers of the stream that are, by name. Forgets dead ones."""
    now = func.clock_timestamp()
    values = {"seen_at": now, "expires_at": now + lifetime}
    new = insert_or(_CONSUMER).values(stream=stream, owner=owner, **values)
    connection.execute(new.on_conflict_do_update(index_elements=["stream", "owner"], set_=values))
    is_dead = (_CONSUMER.c.owner != owner) & (_CONSUMER.c.expires_at <= now)
    connection.execute(delete(_CONSUMER).where(_CONSUMER.c.stream == stream, is_dead))
    owners = select(_CONSUMER.c.owner).where(_CONSUMER.c.stream == stream)
    return list(connection.scalars(owners.order_by(_CONSUMER.c.owner)).all())


def _let_go(connection: Connection, stream: str, owner: str, kept: frozenset[int]) -> None:
    connection.execute(
        update(_PARTITION)
        .where(
            _PARTITION.c.stream == stream,
            _PARTITION.c.assignment_owner == owner,
            _PARTITION.c.stream_partition.not_in(kept),
            IS_LIVE,
        )
        .values(assignment_owner=None)
    )


_FILE = models.source_file


class SourceFiles(OfStore):
    """Started files are never deleted from the store: a file in its folder counts as new if its name is not stored."""

    def begin_file(self, assignment: Assignment, stream_partition: int, name: str) -> int:
        """Registers a source file that is read from now on; returns its number, one more than that of the last file.

        Idempotent by the file's name. Raises StaleEpoch when another owner took the stream.
        """
        of_partition = (_FILE.c.stream == assignment.stream) & (_FILE.c.stream_partition == stream_partition)
        with self.database.transaction("stream.begin_file") as connection:
            check_owner(connection, assignment)
            known = connection.scalar(select(_FILE.c.number).where(of_partition, _FILE.c.name == name))
            if known is not None:
                return int(known)
            number = int(connection.scalar(select(func.max(_FILE.c.number)).where(of_partition)) or 0) + 1
            row = {"stream_partition": stream_partition, "number": number, "name": name}
            connection.execute(insert(_FILE).values(stream=assignment.stream, **row))
        return number

    def begun_files(self, name: str) -> dict[int, dict[int, str]]:
        """Returns every source file that was started: stream partition -> number -> name."""
        query = select(_FILE).where(_FILE.c.stream == name).order_by(_FILE.c.number)
        found: dict[int, dict[int, str]] = {}
        with self.database.transaction("stream.read_files") as connection:
            for row in streamed(connection, query):
                found.setdefault(row.stream_partition, {})[row.number] = row.name
        return found
