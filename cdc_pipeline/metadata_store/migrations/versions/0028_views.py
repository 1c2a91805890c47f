"""Changes no table: every migration creates the views again, and v_boundary_vector regards deleted slices."""

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    """There is nothing to do beside the views."""
