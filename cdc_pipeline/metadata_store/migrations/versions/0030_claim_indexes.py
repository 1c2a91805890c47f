"""Gives claims an index by time, and the index of those with incomplete rows all that `v_withheld` reads of them.

An empty store has both already: its first migration makes the tables as the code declares them today.
"""

from alembic import op

revision = "0030"
down_revision = "0029"
_INDEXES = """
    CREATE INDEX IF NOT EXISTS claim_started_at ON cdc.claim (started_at);
    DROP INDEX cdc.claim_incomplete;
    CREATE INDEX claim_incomplete ON cdc.claim (table_id) INCLUDE (first_number, lake_version, rows_incomplete)
    WHERE rows_incomplete > 0 AND state = 'applied'
    """


def upgrade() -> None:
    op.get_bind().exec_driver_sql(_INDEXES)
