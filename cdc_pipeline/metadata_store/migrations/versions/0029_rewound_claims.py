"""Marks claims as rewound that older code left applied: a later snapshot replaced the lake's table that had them.

Their slices wait again or belong to later claims. So `cdc rewind` does not choose versions of a lake that was lost.
"""

from alembic import op

revision = "0029"
down_revision = "0028"
_MARK = """
    UPDATE cdc.claim SET state = 'rewound'
    FROM (SELECT DISTINCT ON (table_id) table_id, fence_number, finished_at
          FROM cdc.snapshot WHERE state = 'published' ORDER BY table_id, finished_at DESC) AS published
    WHERE claim.table_id = published.table_id AND claim.state = 'applied'
      AND claim.last_number > published.fence_number AND claim.finished_at < published.finished_at
      AND NOT EXISTS (SELECT FROM cdc.slice
                      WHERE slice.claim_id = claim.claim_id AND slice.number > published.fence_number)
    """


def upgrade() -> None:
    op.get_bind().exec_driver_sql(_MARK)
