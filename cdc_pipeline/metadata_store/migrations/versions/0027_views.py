"""Changes no table: every migration creates the views again, and v_withheld reads the quarantined events once."""

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """There is nothing to do beside the views."""


def downgrade() -> None:
    """There is nothing to undo beside the views."""
