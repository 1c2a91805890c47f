"""For any value of any type: snapshot, stream and Debezium's file give the same, and it is what the source prints."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from itertools import compress
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extensions
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg2.extras import execute_values

from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.settings.change_files import CsvSettings
from cdc_pipeline.sources.files.exported_files import ExportedFiles
from cdc_pipeline.sources.pgoutput.decoder import PgOutputDecoder
from cdc_pipeline.sources.postgres.catalogue import canonical_type, read_types
from cdc_pipeline.sources.postgres.copy_stream import copy_record_batches
from cdc_pipeline.sources.postgres.session import connect
from cdc_pipeline.sources.postgres.tables import read_table
from cdc_pipeline.steps import no_step
from cdc_pipeline.types import Parsed, debezium_column, parse_debezium, parse_text, resolve
from tests.support.debezium_json import written
from tests.support.source_types import CREATE_TYPES, TYPES
from tests.support.source_values import UNFIT, Printed, expected, shown
from tests.support.streams import database_of

CHANGES = """
SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)
"""
NAMES = [f"c{number}" for number in range(len(TYPES))]
Row = Sequence[str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A table with a column of each type, read by a slot of its own."""

    connection: psycopg2.extensions.connection
    name: str
    schema: TableSchema

    def replace_rows(self, rows: Sequence[Row]) -> None:
        with self.connection, self.connection.cursor() as cursor:
            cursor.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", (self.name,))
            cursor.execute("TRUNCATE drawn RESTART IDENTITY")
            execute_values(cursor, f"INSERT INTO drawn ({', '.join(NAMES)}) VALUES %s", rows)

    def printed(self) -> dict[str, list[Printed]]:
        columns = ", ".join(
            _printed(name, column.type) for name, column in zip(NAMES, self.schema.columns, strict=True)
        )
        with self.connection, self.connection.cursor() as cursor:
            cursor.execute(f"SELECT {columns} FROM drawn ORDER BY id")
            return dict(zip(NAMES, map(list, zip(*cursor.fetchall(), strict=True)), strict=True))

    def by_snapshot(self) -> dict[str, Parsed]:
        query = f"SELECT {', '.join(NAMES)} FROM drawn ORDER BY id"
        (copied,) = copy_record_batches(self.connection, query, self.schema, block_bytes=64 << 20)
        self.connection.rollback()
        unfit = {
            name: {
                each.row
                for each in copied.unfit_rows
                if each.texts[name] is not None and not copied.rows[name][each.row].is_valid
            }
            for name in NAMES
        }
        return {
            name: Parsed(
                values=copied.rows[name],
                unfit=pa.array([row in unfit[name] for row in range(copied.rows.num_rows)]),
            )
            for name in NAMES
        }

    def by_stream(self) -> dict[str, Parsed]:
        with self.connection, self.connection.cursor() as cursor:
            cursor.execute(CHANGES, (self.name, self.name))
            batch = PgOutputDecoder().feed([bytes(row[0]) for row in cursor.fetchall()])
            types = read_types(self.connection)
        (group,) = batch.groups
        parsed = {}
        for column, told in zip(group.relation.columns, group.new, strict=True):
            if column.name in NAMES:
                type_name = canonical_type(types, column.type_oid, column.modifier)
                assert type_name == self.schema.column(column.name).type
                parsed[column.name] = parse_text(told.values, resolve(type_name))
        return parsed


def _printed(name: str, type_name: str) -> str:
    text = f"format('%s', {name})"
    if type_name.endswith("[]"):
        element = f"CASE WHEN {name}[i] IS DISTINCT FROM NULL THEN format('%s', {name}[i]) END"
        items = f"SELECT coalesce(json_agg({element}), '[]') FROM generate_subscripts({name}, 1) i"
        text = f"json_build_object('dimensions', array_dims({name}), 'items', ({items}))"
    return f"CASE WHEN {name} IS DISTINCT FROM NULL THEN {text} END"


@pytest.fixture
def source(database: str) -> Iterator[Source]:
    name = database_of(database)
    declared = ", ".join(f"{column} {each.sql}" for column, each in zip(NAMES, TYPES, strict=True))
    with closing(connect(database)) as connection:
        with connection, connection.cursor() as cursor:
            cursor.execute(CREATE_TYPES)
            cursor.execute(f"CREATE TABLE drawn (id serial PRIMARY KEY, {declared})")
            cursor.execute(f"CREATE PUBLICATION {name} FOR TABLE drawn")
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
        with connection:
            table = read_table(
                connection, read_types(connection), TableName(database=name, schema="public", table="drawn")
            )
        assert table is not None
        columns = tuple(column for column in table.schema(()).columns if column.name in NAMES)
        yield Source(connection=connection, name=name, schema=TableSchema(columns=columns, key=()))


def outcome(parsed: Parsed) -> list[str]:
    marks = [False] * len(parsed.values) if parsed.unfit is None else parsed.unfit.to_pylist()
    values = [UNFIT if bad else value for value, bad in zip(parsed.values.to_pylist(), marks, strict=True)]
    return shown(values)


def differences(found: Iterable[str], should: Iterable[str]) -> list[tuple[str, str]]:
    return [pair for pair in zip(found, should, strict=True) if pair[0] != pair[1]]


def check_rows(source: Source, rows: Sequence[Row]) -> None:
    source.replace_rows(rows)
    printed = source.printed()
    snapshot, stream = source.by_snapshot(), source.by_stream()
    for name, each in zip(NAMES, TYPES, strict=True):
        column = source.schema.column(name)
        should = shown([expected(column.type, text) for text in printed[name]])
        assert differences(outcome(snapshot[name]), should) == [], each.sql
        assert differences(outcome(stream[name]), should) == [], each.sql
        assert stream[name].values.type == snapshot[name].values.type
        check_debezium(column, each.sql, printed[name], should)


def check_debezium(column: Column, sql: str, printed: list[Printed], should: list[str]) -> None:
    """Over real JSON: with the declared type and the schema, with either of them alone where that one tells enough."""
    declared = sql if sql.startswith("bit(") else column.type
    for decimals in ("precise", "string"):
        content = written(column.type, printed, decimals=decimals)
        values = json.loads(json.dumps(content.values), parse_float=Decimal)
        ways = [parse_debezium(values, declared, content.schema)]
        if decimals == "string" and not is_unknown(column.type, content.schema):
            ways.append(parse_debezium(values, declared, None))
        of_schema = debezium_column({"field": column.name, **content.schema}).type
        if decimals == "precise" and resolve(of_schema).arrow == resolve(column.type).arrow:
            ways.append(parse_debezium(values, of_schema, content.schema))
        for parsed in ways:
            found = outcome(parsed)
            assert differences(compress(found, content.carried), compress(should, content.carried)) == [], sql


def is_unknown(type_name: str, schema: Mapping[str, Any]) -> bool:
    """Text in bytes: what Debezium makes of a type that it does not know."""
    innermost = schema.get("items", schema)
    return innermost == {"type": "bytes"} and not type_name.startswith("bytea")


def test_strange_values_arrive_the_same_by_each_way(source: Source) -> None:
    most = max(len(each.strange) for each in TYPES)
    rows = [[each.strange[row % len(each.strange)] for each in TYPES] for row in range(most)]
    check_rows(source, [[None] * len(TYPES), *rows])


def test_any_value_arrives_the_same_by_each_way(source: Source) -> None:
    row = st.tuples(*(st.none() | each.values for each in TYPES))

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(rows=st.lists(row, min_size=1, max_size=3))
    def check(rows: list[Row]) -> None:
        check_rows(source, rows)

    check()


def test_a_text_of_sixteen_mebibytes_arrives_the_same_by_each_way(source: Source) -> None:
    large = 'é"\\\n' * (16 << 20 >> 2)
    check_rows(source, [[large if each.sql == "text" else None for each in TYPES]])


def test_a_value_added_to_an_enum_in_mid_stream_arrives_as_its_text(source: Source) -> None:
    (mood,) = (name for name, each in zip(NAMES, TYPES, strict=True) if each.sql == "mood")
    source.replace_rows([["sad" if name == mood else None for name in NAMES]])
    for statement in ("ALTER TYPE mood ADD VALUE 'new'", f"INSERT INTO drawn ({mood}) VALUES ('new')"):
        with source.connection, source.connection.cursor() as cursor:
            cursor.execute(statement)
    assert outcome(source.by_snapshot()[mood]) == ["'sad'", "'new'"]
    assert outcome(source.by_stream()[mood]) == ["'sad'", "'new'"]


def test_values_that_copy_writes_are_those_of_a_snapshot(source: Source, tmp_path: Path) -> None:
    """One file per column, since a value that does not fit keeps its whole row out. Twice: few rows and many."""
    most = max(len(each.strange) for each in TYPES)
    rows = [[each.strange[row % len(each.strange)] for each in TYPES] for row in range(most)]
    for times in (1, 20):
        source.replace_rows([[None] * len(TYPES), *rows] * times)
        snapshot = source.by_snapshot()
        for name, each in zip(NAMES, TYPES, strict=True):
            path = tmp_path / f"{times}-{name}.csv"
            with source.connection, source.connection.cursor() as cursor, path.open("wb") as file:
                cursor.copy_expert(f"COPY (SELECT {name} FROM drawn ORDER BY id) TO STDOUT (FORMAT csv, HEADER)", file)
            files = ExportedFiles(
                objects=LocalObjectStore(tmp_path),
                csv=CsvSettings(),
                only=path.name,
                of_postgres=True,
                on_step=no_step,
            )
            schema = TableSchema(columns=(source.schema.column(name),), key=())
            (copied,) = files.rows(TableName.parse("shop.public.drawn"), schema)
            unfit = {found.row for found in copied.unfit_rows}
            values = [UNFIT if row in unfit else value for row, value in enumerate(copied.rows[name].to_pylist())]
            assert shown(values) == outcome(snapshot[name]), each.sql
