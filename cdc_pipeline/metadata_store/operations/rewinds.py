"""Rewinds in the metadata store: the lake version to go back to, and the slices that wait again."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, text, update

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, as_optional_record
from cdc_pipeline.metadata_store.leases import Lease, hold_lease
from cdc_pipeline.metadata_store.states import ClaimState, SliceState

_CLAIM, _SLICE = models.claim, models.slice_table
_TARGET = text("""
    WITH published AS (
        SELECT snapshot.fence_number, snapshot.lake_version, snapshot.cutoff_offset, snapshot.cutoff_time,
               source.forgotten_through
        FROM cdc.snapshot JOIN cdc.source_table AS source USING (table_id)
        WHERE snapshot.table_id = :table_id AND snapshot.state = 'published'
        ORDER BY snapshot.finished_at DESC LIMIT 1
    ), targets AS (
        SELECT fence_number AS number, lake_version, cutoff_offset AS position, cutoff_time AS time
        FROM published WHERE fence_number >= forgotten_through AND lake_version IS NOT NULL
        UNION ALL
        SELECT claim.last_number, claim.lake_version, boundary.position, boundary.commit_time
        FROM cdc.claim
        JOIN cdc.slice ON slice.table_id = claim.table_id AND slice.number = claim.last_number
        JOIN cdc.boundary ON boundary.boundary_id = slice.boundary_id
        JOIN published
            ON claim.last_number > published.fence_number AND claim.last_number >= published.forgotten_through
            -- a snapshot of exported files may be older than slices that were applied before it
            AND claim.lake_version > coalesce(published.lake_version, -1)
        WHERE claim.table_id = :table_id AND claim.state = 'applied' AND claim.lake_version IS NOT NULL
          -- workers compare the slices that the fence names after the rewind
          AND claim.last_number - claim.first_number + 1 = (
              SELECT count(*) FROM cdc.slice AS named
              WHERE named.table_id = claim.table_id
                AND named.number BETWEEN claim.first_number AND claim.last_number)
    )
    SELECT number, lake_version, position, time FROM targets
    WHERE position <= coalesce(:position, position) AND time <= coalesce(CAST(:moment AS timestamptz), time)
    ORDER BY number DESC LIMIT 1
    """)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindTarget:
    """Version `lake_version` of the lake's table contains the slices up to `number`.

    It equals the source as of `position` and `time`.
    """

    number: int
    lake_version: int
    position: str
    time: datetime


class Rewinds(OfStore):
    def target(
        self, table_id: int, *, position: str | None = None, moment: datetime | None = None
    ) -> RewindTarget | None:
        """The latest target at or before both `position` and `moment`.

        None when the last snapshot's cutoff, or the end of the last slice that is forgotten, is later.
        """
        parameters = {"table_id": table_id, "position": position, "moment": moment}
        with self.database.transaction("rewind.read_place") as connection:
            row = connection.execute(_TARGET, parameters).one_or_none()
        return as_optional_record(RewindTarget, row)

    def reopen(self, lease: Lease, *, after: int) -> None:
        """Makes the applied slices behind number `after` wait again, and marks their claims as rewound. Idempotent.

        Raises StaleEpoch when somebody else has the lease.
        """
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
