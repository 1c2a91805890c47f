"""What the registry has to know when the lake of a table is set back: the place to go to, and what waits again."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, text, update

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.leases import Lease, hold_lease
from cdc_pipeline.metadata_store.models.states import ClaimState, SliceState

_CLAIM, _SLICE = models.claim, models.slice_table
_PLACE = text("""
    WITH published AS (
        SELECT n.fence_number, n.lake_version, n.cutoff_offset, n.cutoff_time, t.forgotten_through
        FROM cdc.snapshot AS n JOIN cdc.source_table AS t USING (table_id)
        WHERE n.table_id = :table_id AND n.state = 'published' ORDER BY n.finished_at DESC LIMIT 1
    ), places AS (
        SELECT fence_number AS number, lake_version, cutoff_offset AS position, cutoff_time AS time
        FROM published WHERE fence_number >= forgotten_through
        UNION ALL
        SELECT c.last_number, c.lake_version, b.position, b.commit_time
        FROM cdc.claim AS c
        JOIN cdc.slice AS s ON s.table_id = c.table_id AND s.number = c.last_number
        JOIN cdc.boundary AS b ON b.boundary_id = s.boundary_id
        JOIN published ON c.last_number > published.fence_number AND c.first_number > published.forgotten_through
        WHERE c.table_id = :table_id AND c.state = 'applied' AND c.lake_version IS NOT NULL
    )
    SELECT number, lake_version, position, time FROM places
    WHERE position <= coalesce(:position, position) AND time <= coalesce(CAST(:moment AS timestamptz), time)
    ORDER BY number DESC LIMIT 1
    """)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindTarget:
    """The lake's table, with the slices up to `number`, was version `lake_version`; it equalled the source there."""

    number: int
    lake_version: int
    position: str
    time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewinds:
    database: Database

    def place(
        self, table_id: int, *, position: str | None = None, moment: datetime | None = None
    ) -> RewindTarget | None:
        """The latest one at or before both; None where the last snapshot's cutoff, or all that is kept, is later."""
        parameters = {"table_id": table_id, "position": position, "moment": moment}
        with self.database.transaction("rewind.read_place") as connection:
            row = connection.execute(_PLACE, parameters).one_or_none()
        return None if row is None else RewindTarget(**row._asdict())

    def reopen(self, lease: Lease, *, after: int) -> None:
        """What the lake holds no more waits again. Idempotent. Raises StaleEpoch, like every change of claims."""
        with self.database.transaction("rewind.reopen") as connection:
            hold_lease(connection, lease)
            connection.execute(
                update(_SLICE)
                .where(
                    _SLICE.c.table_id == lease.table_id, _SLICE.c.number > after, _SLICE.c.state == SliceState.APPLIED
                )
                .values(state=SliceState.REGISTERED, claim_id=None, applied_at=None)
            )
            connection.execute(
                update(_CLAIM)
                .where(
                    _CLAIM.c.table_id == lease.table_id,
                    _CLAIM.c.last_number > after,
                    _CLAIM.c.state.in_([ClaimState.APPLIED, ClaimState.CLAIMED]),
                )
                .values(state=ClaimState.REWOUND, finished_at=func.clock_timestamp())
            )
