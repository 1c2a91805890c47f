"""Debezium's connector for PostgreSQL, beside the one for MariaDB, which the demo has."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from cdc_pipeline.demo.kafka import connector_of


def postgres_connector(url: str, *, prefix: str, tables: Iterable[str]) -> dict[str, str]:
    """With the settings of docs/how-to/kafka.md. `tables`: schema.table."""
    return {
        "name": f"{prefix}-postgres",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "slot.name": f"{prefix}_debezium",
        "publication.name": f"{prefix}_debezium",
        "publication.autocreate.mode": "filtered",
        **connector_of(url, prefix=prefix, tables=tables),
        "database.dbname": urlsplit(url).path.removeprefix("/"),
    }
