"""Changes no table: every migration creates the views again, and v_withheld reads the quarantined events once."""

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    """There is nothing to do beside the views."""
