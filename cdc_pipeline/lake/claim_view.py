"""Makes the temporary views that a claim's SQL reads: the events that count, and all rows if they are needed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from cdc_pipeline.lake.columns import definition
from cdc_pipeline.lake.deduplicate_sql import EVENT, LACKING, ClaimShape
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable
from cdc_pipeline.lake.quoting import identifier, text_literal, value_literal
from cdc_pipeline.lake.session import checkpointed, cleaned_up
from cdc_pipeline.lake.shape import Shape
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import ABSENT, COMMIT_TIME, OLD_ID_PREFIX, OPERATION, VERSION, Column, TableSchema
from cdc_pipeline.types import resolve

EVERY = "cdc_slice_row"
NO_NAMES = "CAST(array() AS ARRAY<STRING>)"


class Views:
    """Temporary views by name, so that plans can be written as SQL."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._names: set[str] = set()
        self._kept: list[DataFrame] = []

    def name(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self._names.add(name)

    def name_sql(self, name: str, sql: str) -> None:
        self.name(name, self.session.sql(sql))

    def keep_sql(self, name: str, sql: str) -> DataFrame:
        """Computes `sql` now and once, and makes a view of the result."""
        frame = checkpointed(self.session, self.session.sql(sql))
        self._kept.append(frame)
        self.name(name, frame)
        return frame

    def drop_all(self) -> None:
        for name in self._names:
            self.session.catalog.dropTempView(name)


@contextmanager
def opened_views(session: SparkSession) -> Iterator[Views]:
    views = Views(session)
    with cleaned_up(session, views.drop_all):
        yield views


def claim_shape(table: LakeTable, work: ClaimWork, lake: Shape) -> ClaimShape:
    """Returns the columns for the claim's SQL. `lake` is the lake table's shape, already fitted to the claim."""
    known = [set(lake.lake_names(content.schema).values()) for content in work.slices]
    anywhere, everywhere = set.union(*known), set.intersection(*known)
    return ClaimShape(
        columns=lake.types,
        key=table.schema.key,
        lacking=frozenset(name for name in lake.names if name not in everywhere),
        dropped=frozenset(column.name for column in lake.columns if column.dropped or column.name not in anywhere),
        missing=missing_values(lake),
    )


def missing_values(lake: Shape) -> dict[str, str]:
    """Returns column -> SQL of the value that rows written before the column was added have, where it is not NULL."""
    return {
        column.name: f"CAST({value_literal(column.missing_value, column.missing_type)} AS {column.type})"
        for column in lake.columns
        if column.missing is not None and not column.dropped
    }


def name_events(
    views: Views, store: ObjectStore, table: LakeTable, work: ClaimWork, lake: Shape, shape: ClaimShape
) -> None:
    """Makes the view EVENT: the claim's events without truncates and without events that the snapshot contains.

    With hard deletes, and in keyless tables, EVENT also lacks the events at or below the last truncate. A claim with
    both truncates and key changes also gets the view EVERY with all rows, which `truncates_in` reads.
    """
    rows = slice_rows(views.session, store, work, lake, shape)
    if work.truncates and work.key_changes:
        views.name(EVERY, rows)
    kept = [f"{OPERATION} <> 't'", f"{VERSION} >= {text_literal(work.cutoff_version)}"]
    if table.deletes == "hard" or table.schema.is_keyless:
        kept.append(f"{VERSION} > {text_literal(work.truncated_at)}")
    views.name(EVENT, rows.where(" AND ".join(kept)))


def truncates_in(session: SparkSession, work: ClaimWork) -> tuple[str, ...]:
    """Returns the versions of the truncates in the claim itself."""
    if not work.truncates:
        return ()
    rows = session.sql(
        f"SELECT DISTINCT {VERSION} AS version FROM {EVERY}"
        f" WHERE {OPERATION} = 't' AND {VERSION} >= {text_literal(work.cutoff_version)}"
    ).collect()
    return tuple(sorted(str(row["version"]) for row in rows))


def slice_rows(session: SparkSession, store: ObjectStore, work: ClaimWork, lake: Shape, shape: ClaimShape) -> DataFrame:
    """Returns all rows of all slices with the lake's names and types. Each file is read with its own schema.

    A column that a slice's schema lacks has the value of rows from before the column was added, or NULL. LACKING names
    such columns in updates and moves; in an insert, that value counts as the column's value.
    """
    keys: dict[TableSchema, list[str]] = {}
    for content in work.slices:
        keys.setdefault(content.schema, []).append(store.spark_url(content.key))
    frames = []
    for schema, urls in keys.items():
        lake_names = lake.lake_names(schema)
        names_in_file = {lake_name: name for name, lake_name in lake_names.items()}
        lacking = [name for name in shape.names if name not in names_in_file]
        names = f"IF({OPERATION} IN ('u', 'm'), array({', '.join(map(text_literal, lacking))}), {NO_NAMES})"
        present = [
            f"{_value(schema, names_in_file.get(name), type_, shape.missing_value(name, type_))} AS {identifier(name)}"
            for name, type_ in shape.columns
        ]
        frame = session.read.schema(_file_schema(schema)).parquet(*urls)
        frames.append(
            frame.selectExpr(
                OPERATION,
                VERSION,
                COMMIT_TIME,
                f"{_absent(schema, lake_names)} AS {ABSENT}",
                f"{names if lacking else NO_NAMES} AS {LACKING}",
                *(
                    f"{identifier(OLD_ID_PREFIX + names_in_file[key])} AS {identifier(OLD_ID_PREFIX + key)}"
                    for key in shape.key
                ),
                *present,
            )
        )
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionAll(frame)
    return rows


def _value(schema: TableSchema, name: str | None, type_: str, missing: str) -> str:
    if name is None:
        return missing
    return (
        identifier(name) if resolve(schema.column(name).type).spark == type_ else f"CAST({identifier(name)} AS {type_})"
    )


def _absent(schema: TableSchema, lake_names: Mapping[str, str]) -> str:
    """Returns SQL for the lake's names of the absent columns; '' for a column that the lake no longer has."""
    absent = f"coalesce({ABSENT}, {NO_NAMES})"
    others = [(name, lake_names.get(name, "")) for name in schema.names if lake_names.get(name) != name]
    if not others:
        return absent
    cases = " ".join(f"WHEN {text_literal(name)} THEN {text_literal(lake_name)}" for name, lake_name in others)
    return f"transform({absent}, name -> CASE name {cases} ELSE name END)"


def _file_schema(schema: TableSchema) -> str:
    old = [Column(name=OLD_ID_PREFIX + column.name, type=column.type) for column in schema.key_columns]
    own = [f"{OPERATION} STRING", f"{VERSION} STRING", f"{COMMIT_TIME} TIMESTAMP", f"{ABSENT} ARRAY<STRING>"]
    return ", ".join([*own, *map(definition, [*old, *schema.columns])])
