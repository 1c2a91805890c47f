"""How far a table was followed when something stopped it: its lake is proven equal to the source up to there."""

from sqlalchemy import ColumnElement, Connection, func, select, update

from cdc_pipeline.metadata_store import models

_TABLE, _SLICE, _BOUNDARY = models.source_table, models.slice_table, models.boundary


def halt(connection: Connection, which: ColumnElement[bool]) -> None:
    """The position stands still from now on; where it stands already, it stays.

    A cut holds a slice of every table that is read, also an empty one: the last cut with a slice of the table, or the
    cutoff behind it, is as far as the table was followed. Late slices come at any time and prove nothing.
    """
    followed = (
        select(_BOUNDARY.c.position)
        .join(_SLICE, _SLICE.c.boundary_id == _BOUNDARY.c.boundary_id)
        .where(_SLICE.c.table_id == _TABLE.c.table_id, _SLICE.c.late.is_(False))
        .order_by(_SLICE.c.boundary_id.desc())
        .limit(1)
        .scalar_subquery()
    )
    known = func.coalesce(_TABLE.c.halted_at, func.greatest(followed, _TABLE.c.cutoff_offset))
    connection.execute(update(_TABLE).where(which).values(halted_at=known))


def go_on(connection: Connection, which: ColumnElement[bool]) -> None:
    """The position moves again with what is registered and applied."""
    connection.execute(update(_TABLE).where(which).values(halted_at=None))
