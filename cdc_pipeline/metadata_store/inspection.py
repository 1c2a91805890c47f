"""Named, read-only questions to the metadata store: the one query layer under every display."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from cdc_pipeline.errors import UsageError
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.inspection_files import query_names, sql

_READ_ONLY = "SET TRANSACTION READ ONLY; SET LOCAL statement_timeout = '15s'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    database: Database

    def queries(self) -> tuple[str, ...]:
        """Names that `run` takes."""
        return query_names()

    def run(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Rows in the query's order, columns in its order. What is not given is NULL, which asks for everything.

        Raises UsageError for an unknown name or parameter.
        """
        if name not in query_names():
            raise UsageError(f"there is no query {name}", expected=f"one of {', '.join(query_names())}")
        query = text(sql(name))
        known = dict.fromkeys(query.compile().params)
        given = dict(parameters or {})
        unknown = sorted(given.keys() - known.keys())
        if unknown:
            raise UsageError(
                f"the query {name} has no parameter {', '.join(unknown)}", expected=f"some of {', '.join(known)}"
            )
        with self.database.transaction("inspection.run") as connection:
            connection.exec_driver_sql(_READ_ONLY)
            return [dict(row) for row in connection.execute(query, known | given).mappings()]
