"""One exact position of the source, held together with a snapshot of the database as it was there."""

import contextlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg2
import psycopg2.extensions
from psycopg2 import sql

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.record import SNAPSHOT_ORDINAL, encode_position, encode_version
from cdc_pipeline.sources.postgres_session import answering, connect_for_replication, session
from cdc_pipeline.steps import OnStep, step


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPosition:
    """Transactions that committed before `position` are in the snapshot, all others come later in the stream.

    `time` is the source's clock when the snapshot was taken; `exported` is the name under which other connections
    can see the same snapshot while this one is held.
    """

    position: int
    time: datetime
    exported: str

    @property
    def offset(self) -> str:
        return encode_position(self.position)

    @property
    def lsn(self) -> str:
        return lsn_text(self.position)

    @property
    def version(self) -> str:
        return encode_version(self.position, SNAPSHOT_ORDINAL)


def lsn_text(position: int) -> str:
    """A position as PostgreSQL writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


@contextmanager
def hold_position(source_url: str, slot_name: str, on_step: OnStep) -> Iterator[HeldPosition]:
    """A temporary slot of this name gives the position; it and the snapshot are gone when the block is left.

    Creating it waits until every transaction that runs now has ended.
    """
    with (
        answering(),
        closing(connect_for_replication(source_url)) as connection,
        connection.cursor() as cursor,
    ):
        create = sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT")
        with step(on_step, "position.hold"):
            cursor.execute(create.format(sql.Identifier(slot_name)))
        row = cursor.fetchone()
        if row is None:
            raise SnapshotError("the source gave no snapshot", remedy="run the same command again")
        high, low = str(row[1]).split("/")
        position = (int(high, 16) << 32) + int(low, 16)
        yield HeldPosition(position=position, time=_source_time(source_url), exported=str(row[2]))


def is_held(source_url: str, slot_name: str) -> bool:
    """Whether somebody still holds a position under this name."""
    with session(source_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (slot_name,))
        return cursor.fetchone() is not None


@contextmanager
def snapshot_connection(source_url: str, exported: str) -> Iterator[psycopg2.extensions.connection]:
    """A read-only connection that sees the database exactly at the position. Raises SnapshotError once it is gone."""
    with session(source_url) as connection:
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
        with connection.cursor() as cursor:
            try:
                cursor.execute("SET TRANSACTION SNAPSHOT %s", (exported,))
            except psycopg2.Error as error:
                raise SnapshotError(
                    f"the exported snapshot {exported} is gone",
                    expected="the process that holds it",
                    remedy="run the same command again: it starts over at a new position",
                ) from error
        yield connection
        with contextlib.suppress(psycopg2.InterfaceError):
            connection.rollback()


def _source_time(source_url: str) -> datetime:
    with session(source_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        row = cursor.fetchone()
        if row is None or not isinstance(row[0], datetime):
            raise SnapshotError("the source did not tell its time", remedy="run the same command again")
        return row[0]
