"""Creates the demo's source: tables of the shop and of pgbench with their first rows."""

import os
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.resources import files

import psycopg2.extensions

from cdc_pipeline.demo.pgbench import initialize_pgbench
from cdc_pipeline.sources.postgres.session import connect

_HAS_ROWS = "SELECT EXISTS (SELECT FROM customers)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Rows per table. `lines`: order items per order. `pgbench`: accounts in units of 100,000."""

    customers: int = 2_000
    products: int = 500
    orders: int = 20_000
    lines: int = 3
    pgbench: int = 1


DEMO_SCALE = Scale()


def seed(source_url: str, scale: Scale = DEMO_SCALE) -> None:
    """Existing tables and rows stay as they are. The next call completes one that was killed."""
    with closing(connect(source_url)) as connection, connection.cursor() as cursor:
        cursor.execute(_statements("shop.sql"))
        if not _has_rows(cursor):
            cursor.execute(_statements("shop_rows.sql"), asdict(scale))
        connection.commit()
    initialize_pgbench(source_url, scale=scale.pgbench, environment=os.environ)


def _has_rows(cursor: psycopg2.extensions.cursor) -> bool:
    cursor.execute(_HAS_ROWS)
    return cursor.fetchone() == (True,)


def _statements(name: str) -> str:
    return (files("cdc_pipeline.demo") / name).read_text(encoding="utf-8")
