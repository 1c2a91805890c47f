"""How far a table was followed when something stopped it: its lake is proven equal to the source up to there."""

from sqlalchemy import ColumnElement, Connection, func, update

from cdc_pipeline.metadata_store import models

_TABLE = models.source_table


def halt(connection: Connection, which: ColumnElement[bool]) -> None:
    """The position stands still from now on; where it stands already, it stays.

    The last cut that names the table, or the cutoff behind it, is as far as the table was followed.
    """
    known = func.coalesce(_TABLE.c.halted_at, func.greatest(_TABLE.c.followed_at, _TABLE.c.cutoff_offset))
    connection.execute(update(_TABLE).where(which).values(halted_at=known))


def go_on(connection: Connection, which: ColumnElement[bool]) -> None:
    """The position moves again with what is registered and applied."""
    connection.execute(update(_TABLE).where(which).values(halted_at=None))
