"""Named read-only queries about one pipeline. Every display of the metadata store uses them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from cdc_pipeline.errors import UsageError
from cdc_pipeline.metadata_store.database import Database, OfStream, create_store_engine
from cdc_pipeline.steps import OnStep, no_step

_READ_ONLY = "SET TRANSACTION READ ONLY; SET LOCAL statement_timeout = '15s'"
_HISTORIES = frozenset({"boundaries", "claims", "quarantine", "slices", "snapshots"})
"""Queries whose result grows without limit: by default they return the newest rows, and others return all."""
_NEWEST = 100
_MOST_DIGITS = 18
"""Of a limit: every number of 18 digits is a bigint of PostgreSQL."""
_OF_STREAM = "stream = :stream"
_OF_TABLE = f"{_OF_STREAM} AND (CAST(:table AS text) IS NULL OR source_table = :table)"
_IN_STATE = "(CAST(:state AS text) IS NULL OR state = :state)"
_QUERIES = {
    "boundaries": f"v_boundary_vector WHERE {_OF_TABLE} ORDER BY boundary_id DESC, source_table",
    "claims": f"v_claim_history WHERE {_OF_TABLE} ORDER BY started_at DESC",
    "columns": f'v_column WHERE {_OF_TABLE} ORDER BY source_table, number NULLS LAST, "column", since_offset',
    "damaged": f"v_damaged_slice WHERE {_OF_TABLE} ORDER BY source_table, number",
    "lag": f"v_table_lag WHERE {_OF_TABLE} ORDER BY source_table",
    "lease": f"v_lease WHERE {_OF_TABLE} ORDER BY source_table",
    "partitions": f"v_stream_partition WHERE {_OF_STREAM} ORDER BY stream, stream_partition",
    "position": f"v_lake_position WHERE {_OF_TABLE} ORDER BY source_table",
    "quarantine": f"v_quarantine WHERE {_OF_TABLE} AND {_IN_STATE} ORDER BY quarantine_id DESC",
    "slices": f"v_slice_history WHERE {_OF_TABLE} ORDER BY boundary_id DESC, source_table, number DESC",
    "snapshots": f"v_snapshot_progress WHERE {_OF_TABLE} ORDER BY started_at DESC, kind",
    "withheld": f"v_withheld WHERE {_OF_TABLE} ORDER BY source_table",
}


def query_names() -> tuple[str, ...]:
    """The names of the queries, sorted."""
    return tuple(sorted(_QUERIES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Rows and columns in the query's order. `is_cut`: the limit left rows out."""

    rows: list[dict[str, Any]]
    columns: tuple[str, ...]
    is_cut: bool


class Inspection(OfStream):
    """Queries about the pipeline that reads `stream`, and about no other pipeline in the same store."""

    def run(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Like `ask`, but only the rows."""
        return self.ask(name, parameters).rows

    def ask(self, name: str, parameters: Mapping[str, Any] | None = None) -> Answer:
        """Runs a query in a read-only transaction of at most 15 seconds.

        Parameters that are not given are NULL, which means no restriction. Without `limit`, a query whose result grows
        without limit returns its newest 100 rows. Raises UsageError for an unknown name or parameter.
        """
        if name not in _QUERIES:
            raise UsageError(f"there is no query {name}", expected=f"one of {', '.join(query_names())}")
        query = text(f"SELECT * FROM cdc.{_QUERIES[name]} LIMIT CAST(:limit AS bigint)")
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
            found = connection.execute(query, values).mappings()
            columns, rows = tuple(found.keys()), [dict(row) for row in found]
        return Answer(rows=rows[:limit], columns=columns, is_cut=limit is not None and len(rows) > limit)


@contextmanager
def open_inspection(url: str, *, stream: str, on_step: OnStep = no_step) -> Iterator[Inspection]:
    """Opens the queries of a store that is current, without the rest of the store: see `upgrade`."""
    engine = create_store_engine(url)
    try:
        yield Inspection(database=Database(engine=engine, on_step=on_step), stream=stream)
    finally:
        engine.dispose()


def _limit(name: str, given: Any) -> int | None:
    """The largest number of rows to return; None for all."""
    if given is None:
        return _NEWEST if name in _HISTORIES else None
    if not str(given).isdecimal() or len(str(given)) > _MOST_DIGITS:
        raise UsageError(
            f"the limit {given!r} is no number of rows", expected=f"a whole number of at most {_MOST_DIGITS} digits"
        )
    return int(given)
