"""Named, read-only questions to the metadata store about one pipeline: the one query layer under every display."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from cdc_pipeline.errors import UsageError
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.inspection.sql_files import query_names, sql

_READ_ONLY = "SET TRANSACTION READ ONLY; SET LOCAL statement_timeout = '15s'"
_HISTORIES = frozenset({"boundaries", "claims", "quarantine", "slices", "snapshots"})
"""These grow for ever: the newest rows are shown. Of everything else all rows are."""
_NEWEST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Rows in the query's order, columns in its order. `is_cut`: there are more, which the limit left out."""

    rows: list[dict[str, Any]]
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What is asked concerns the pipeline that reads `stream`, and no other in the same store."""

    database: Database
    stream: str

    def queries(self) -> tuple[str, ...]:
        """Names that `run` takes."""
        return query_names()

    def run(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows alone."""
        return self.ask(name, parameters).rows

    def ask(self, name: str, parameters: Mapping[str, Any] | None = None) -> Answer:
        """What is not given is NULL, which asks for everything; of what grows for ever, for the newest rows.

        Raises UsageError for an unknown name or parameter.
        """
        if name not in query_names():
            raise UsageError(f"there is no query {name}", expected=f"one of {', '.join(query_names())}")
        query = text(sql(name))
        known = dict.fromkeys(query.compile().params.keys() - {"stream"})
        given = dict(parameters or {})
        unknown = sorted(given.keys() - known.keys())
        if unknown:
            raise UsageError(
                f"the query {name} has no parameter {', '.join(unknown)}",
                expected=f"some of {', '.join(sorted(known))}",
            )
        limit = _limit(name, given.get("limit"))
        values = known | given | {"stream": self.stream, "limit": None if limit is None else limit + 1}
        with self.database.transaction("inspection.run") as connection:
            connection.exec_driver_sql(_READ_ONLY)
            rows = [dict(row) for row in connection.execute(query, values).mappings()]
        return Answer(rows=rows[:limit], is_cut=limit is not None and len(rows) > limit)


def _limit(name: str, given: Any) -> int | None:
    """How many rows are shown; None: all."""
    if given is None:
        return _NEWEST if name in _HISTORIES else None
    if not str(given).isdecimal():
        raise UsageError(f"the limit {given!r} is no number of rows", expected="a whole number")
    return int(given)
