"""Registers claims that the lake's log has and the metadata store lacks, and marks them as applied."""

from sqlalchemy import Connection, func, select, update
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.states import ClaimState, SliceState
from cdc_pipeline.record import KnownClaim

_REBUILD = "cdc rebuild"
_CLAIM, _SLICE = models.claim, models.slice_table


def apply_known_claim(connection: Connection, table_id: int, found: KnownClaim, *, owner: str = _REBUILD) -> None:
    """Marks the claim and its waiting slices as applied. `owner`: the process that found the claim in the log.

    A claim that the store already has keeps its row counts. Slices of a rewound claim are not marked.
    """
    of_claim = (_SLICE.c.table_id == table_id) & _SLICE.c.number.between(found.first_number, found.last_number)
    counted = select(func.count(), func.coalesce(func.sum(_SLICE.c.rows), 0)).where(of_claim)
    slices, rows = connection.execute(counted).one()
    state = ClaimState.REWOUND if found.is_rewound else ClaimState.APPLIED
    marked = {"state": state, "error": None, "lake_version": found.lake_version}
    connection.execute(
        insert(_CLAIM)
        .values(
            claim_id=found.claim_id,
            table_id=table_id,
            first_number=found.first_number,
            last_number=found.last_number,
            epoch=0,
            owner=owner,
            attempt=1,
            slices=slices,
            rows_read=rows,
            started_at=found.committed_at,
            finished_at=found.committed_at,
            **marked,
        )
        .on_conflict_do_update(
            index_elements=["claim_id"],
            set_={**marked, "finished_at": func.coalesce(_CLAIM.c.finished_at, found.committed_at)},
        )
    )
    if not found.is_rewound:
        connection.execute(
            update(_SLICE)
            .where(of_claim, _SLICE.c.state == SliceState.REGISTERED)
            .values(state=SliceState.APPLIED, claim_id=found.claim_id, applied_at=found.committed_at)
        )
