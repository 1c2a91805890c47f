"""Leases: who may work on a table, by the database's clock. The epoch rises with each acquisition."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NoReturn

from sqlalchemy import ColumnElement, Connection, Interval, and_, bindparam, func, select, text, update
from sqlalchemy.exc import IntegrityError

from cdc_pipeline.errors import LeaseBusy, StaleEpoch, UsageError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, as_optional_record, as_record

_LEASE = models.lease
_ACQUIRE = text("""
    INSERT INTO cdc.lease AS held (table_id, owner, epoch, expires_at, acquired_at, renewed_at)
    SELECT source.table_id, :owner, 1, now.time + :duration, now.time, now.time
    FROM cdc.source_table AS source, clock_timestamp() AS now (time) WHERE source.table_id = :table_id
    ON CONFLICT (table_id) DO UPDATE
    SET owner = excluded.owner,
        epoch = held.epoch + 1,
        expires_at = clock_timestamp() + :duration,
        acquired_at = clock_timestamp(),
        renewed_at = clock_timestamp()
    WHERE held.expires_at <= clock_timestamp()
    RETURNING *
    """).bindparams(bindparam("duration", type_=Interval))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to work on a table until `expires_at` by the database's clock. The next owner has epoch + 1."""

    table_id: int
    owner: str
    epoch: int
    expires_at: datetime
    acquired_at: datetime
    renewed_at: datetime


class Leases(OfStore):
    def acquire(self, table_id: int, *, owner: str, duration: timedelta) -> Lease:
        """Raises LeaseBusy, without waiting, while anybody has the lease: also the same owner in another process.

        Raises UsageError for a table that was removed.
        """
        parameters = {"table_id": table_id, "owner": owner, "duration": duration}
        with self.database.transaction("lease.acquire") as connection:
            try:
                row = connection.execute(_ACQUIRE, parameters).one_or_none()
            except IntegrityError as error:  # the table was there when the statement began
                raise _removed(table_id) from error
            holder = None if row is not None else _current(connection, table_id)
        if row is not None:
            return as_record(Lease, row)
        if holder is None:
            raise _removed(table_id)
        words = f"{holder.owner} until {holder.expires_at:%Y-%m-%dT%H:%M:%SZ}"
        raise LeaseBusy(f"the lease of table {table_id} is held by {words}", remedy="leave: the holder does the work")

    def renew(self, lease: Lease, *, duration: timedelta) -> Lease:
        """Extends the lease by `duration` from now, even after it expired. Raises StaleEpoch if another has it."""
        with self.database.transaction("lease.renew") as connection:
            row = connection.execute(
                update(_LEASE)
                .where(_is_held_by(lease))
                .values(expires_at=func.clock_timestamp() + duration, renewed_at=func.clock_timestamp())
                .returning(_LEASE)
            ).one_or_none()
            if row is None:
                _raise_stale(connection, lease)
        return as_record(Lease, row)

    def release(self, lease: Lease) -> None:
        """Idempotent. Does nothing when somebody else has the lease by now."""
        with self.database.transaction("lease.release") as connection:
            connection.execute(
                update(_LEASE)
                .where(_is_held_by(lease), _LEASE.c.expires_at > func.clock_timestamp())
                .values(expires_at=func.clock_timestamp())
            )


def hold_lease(connection: Connection, lease: Lease) -> None:
    """Locks the lease until the transaction ends, so that nobody acquires it. Raises StaleEpoch if another has it."""
    held = select(_LEASE.c.table_id).where(_is_held_by(lease)).with_for_update(key_share=True)
    if connection.execute(held).one_or_none() is None:
        _raise_stale(connection, lease)


def _is_held_by(lease: Lease) -> ColumnElement[bool]:
    """Compares the owner too, because a rebuilt store may count epochs from one again."""
    return and_(_LEASE.c.table_id == lease.table_id, _LEASE.c.epoch == lease.epoch, _LEASE.c.owner == lease.owner)


def _current(connection: Connection, table_id: int) -> Lease | None:
    row = connection.execute(select(_LEASE).where(_LEASE.c.table_id == table_id)).one_or_none()
    return as_optional_record(Lease, row)


def _removed(table_id: int) -> UsageError:
    return UsageError(
        f"the table number {table_id} is no longer in the metadata store",
        expected="a registered table",
        remedy="another process removed it: if pipeline.yml lists it, run cdc setup-source",
    )


def _raise_stale(connection: Connection, lease: Lease) -> NoReturn:
    holder = _current(connection, lease.table_id)
    raise StaleEpoch(
        f"the lease of table {lease.table_id} is now {f'epoch {holder.epoch} of {holder.owner}' if holder else 'gone'}",
        expected=f"epoch {lease.epoch} of {lease.owner}",
        remedy="stop this worker: the newer one continues from what the lake has",
    )
