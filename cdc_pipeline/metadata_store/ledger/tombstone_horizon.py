"""The tombstone horizon of a table: no event below this version is applied any more.

Maintenance may therefore delete tombstones below it: no late event can need them.
"""

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, exists, select, update

from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore
from cdc_pipeline.metadata_store.ledger.cut import Slice
from cdc_pipeline.metadata_store.states import QuarantineState

_TABLE, _ENTRY = models.source_table, models.quarantine


class TombstoneHorizons(OfStore):
    def promise(self, table_id: int, version: str) -> tuple[str, int]:
        """Raises the horizon to `version`: from now on no older event is registered.

        Returns the table's horizon and its number: no slice above this number has an event older than the horizon.

        A horizon never goes back. It does not rise while a quarantined event that could be replayed is older than
        `version`.
        """
        with self.database.transaction("horizon.promise") as connection:
            row = connection.execute(
                select(_TABLE.c.horizon, _TABLE.c.horizon_number, _TABLE.c.next_slice_number)
                .where(_TABLE.c.table_id == table_id)
                .with_for_update()
            ).one()
            waiting = exists().where(
                _ENTRY.c.table_id == table_id,
                _ENTRY.c.state == QuarantineState.WAITING,
                _ENTRY.c.version < version,
                (_ENTRY.c.version == "") | (_ENTRY.c.version >= row.horizon),
            )
            if version <= row.horizon or connection.scalar(select(waiting)):
                return row.horizon, row.horizon_number
            _raise(connection, table_id, version)
        return version, row.next_slice_number - 1

    def follow(self, table_id: int, version: str) -> None:
        """Raises the horizon to one that a cut file has, in a store that is older than the file."""
        with self.database.transaction("horizon.promise") as connection:
            _raise(connection, table_id, version)


def _raise(connection: Connection, table_id: int, version: str) -> None:
    values = {"horizon": version, "horizon_number": _TABLE.c.next_slice_number - 1}
    connection.execute(update(_TABLE).where(_TABLE.c.table_id == table_id, _TABLE.c.horizon < version).values(values))


def check_tombstone_horizons(slices: Iterable[Slice], horizons: Mapping[int, str]) -> None:
    """Raises RegistryError for a slice with an event below the horizon of its table.

    `horizons`: by table id, read while the table's row is locked.
    """
    for new in slices:
        horizon = horizons[new.table_id]
        if new.is_below(horizon):
            raise RegistryError(
                f"a slice of table {new.table_id} goes back to the version {new.oldest_version}",
                expected=f"none below {horizon}: tombstones under it may be gone",
                remedy="start again: events that are too late go to quarantine, where they may be dropped",
            )
