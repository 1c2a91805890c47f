"""Reads the server's variables and the tables of its catalogue."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pymysql.connections import Connection
from pymysql.err import MySQLError

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.mysql.altered_tables import cascading_key
from cdc_pipeline.sources.mysql.dialect import Dialect, dialect_of
from cdc_pipeline.sources.mysql.gtid_set import LogPlace
from cdc_pipeline.sources.mysql.session import quoted, rows
from cdc_pipeline.sources.mysql.shape import MysqlColumn, TableShape
from cdc_pipeline.types import text_of
from cdc_pipeline.types.mysql import parse_column_type

_NOT_SHOWN = frozenset({1142, 1146})
"""Errors of a table that the user may not read as a whole, and of one that was dropped a moment ago."""
_NUMBERS = re.compile(r"(\d+)\.(\d+)")
_TABLES = """
SELECT t.table_schema, t.table_name, t.table_type, coalesce(t.engine, ''), coalesce(t.data_length, 0)
FROM information_schema.tables AS t WHERE t.table_schema = %s AND t.table_name IN %s
"""
_COLUMNS = """
SELECT c.table_schema, c.table_name, c.column_name, c.column_type, c.character_set_name, c.is_nullable = 'YES',
       if(version() LIKE '%%MariaDB%%', c.column_default, concat('=', c.column_default)),
       coalesce(c.generation_expression, ''), FALSE /*M!110000 OR coalesce(c.generation_expression, '') <> '' */
FROM information_schema.columns AS c WHERE c.table_schema = %s AND c.table_name IN %s
ORDER BY c.table_schema, c.table_name, c.ordinal_position
"""
"""Last: whether the log leaves the column out of updates. MariaDB from 11 on does so with all computed columns.

Only MariaDB reads the comment, from this version on.
"""
_ALTERED = """
SELECT t.table_schema, t.table_name, t.create_time
FROM information_schema.tables AS t WHERE t.table_schema = %s AND t.table_name IN %s
"""
_KEYS = """
SELECT k.table_schema, k.table_name, k.column_name
FROM information_schema.statistics AS k
WHERE k.index_name = 'PRIMARY' AND k.table_schema = %s AND k.table_name IN %s
ORDER BY k.table_schema, k.table_name, k.seq_in_index
"""
_ARRAYS = """
SELECT k.table_schema, k.table_name, k.index_name FROM information_schema.statistics AS k
WHERE k.table_schema = %s AND k.table_name IN %s AND (FALSE /*!80013 OR k.expression LIKE '%% as %% array)' */)
"""
"""Only MySQL reads the comment, from the version on that has the column."""
_CASCADES = """
SELECT k.constraint_schema, k.table_name, k.constraint_name FROM information_schema.referential_constraints AS k
WHERE k.constraint_schema = %s AND k.table_name IN %s
  AND (FALSE /*!80000 OR 'CASCADE' IN (k.delete_rule, k.update_rule) OR 'SET NULL' IN (k.delete_rule, k.update_rule) */)
ORDER BY 1, 2, 3
"""
"""Only MySQL reads the comment: MariaDB shows foreign keys only to users that may do more than read."""
_ALL_TABLES = """
SELECT table_schema, table_name FROM information_schema.tables
WHERE table_type = 'BASE TABLE'
  AND table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')
ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogServer:
    """A server at one time. `version` is (0, 0) for a text without numbers. `place`: the end of its log.

    `variables`: "" for each that it does not have. `retention_seconds`: how long it keeps log files, 0 for ever.
    """

    version_text: str
    version: tuple[int, int]
    dialect: Dialect
    variables: Mapping[str, str]
    place: LogPlace
    retention_seconds: float

    @property
    def end(self) -> int:
        """The position behind every transaction of the log."""
        return self.place.end

    @property
    def takes_any_case(self) -> bool:
        """Whether names of tables and databases that differ in capitals alone are one: lower_case_table_names 1 or 2.

        Statements of the log have such a name as it was written.
        """
        return self.variables.get("lower_case_table_names", "0") not in ("", "0")

    @property
    def makes_column_keys(self) -> bool:
        """Whether REFERENCES in the definition of a column makes a foreign key. MySQL ignores it up to version 8."""
        return self.dialect.is_mariadb or self.version >= (9, 0)

    @property
    def identity(self) -> str:
        """The log to which positions belong."""
        return self.dialect.identity(self.variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlCatalogueTable:
    """A table as the catalogue has it.

    `array_index`: a multi-valued index, which adds a hidden column of arrays to the rows of the log. `cascade`: of
    MySQL, a foreign key by which the engine changes rows of the table without events; of MariaDB, see `read_cascade`.
    """

    name: TableName
    kind: str
    engine: str
    shape: TableShape
    primary_key: tuple[str, ...]
    array_index: str | None
    cascade: str | None


def read_server(connection: "Connection[Any]") -> BinlogServer:
    found = {str(name).lower(): str(value) for name, value in rows(connection, "SHOW GLOBAL VARIABLES")}
    variables = defaultdict(str, found)
    variables["log_replica_updates"] = variables["log_replica_updates"] or variables["log_slave_updates"]
    dialect, numbers = dialect_of(variables["version"]), _NUMBERS.match(variables["version"])
    days = float(variables["expire_logs_days"] or 0)
    ((end,),) = rows(connection, f"SELECT {dialect.end_sql}")  # MySQL shows at most 1024 characters of a variable
    return BinlogServer(
        version_text=variables["version"],
        version=(int(numbers[1]), int(numbers[2])) if numbers else (0, 0),
        dialect=dialect,
        variables=variables,
        place=dialect.end_of(str(end), variables),
        retention_seconds=float(variables["binlog_expire_logs_seconds"] or 0) or days * 86_400,
    )


def read_tables(
    connection: "Connection[Any]", names: Collection[TableName], as_text: Mapping[TableName, Collection[str]]
) -> dict[TableName, MysqlCatalogueTable]:
    """Reads tables by name. Leaves out those that do not exist or that the user may not see.

    `as_text`: columns whose values the lake keeps as the source's texts.
    """
    wanted = {(name.schema, name.table): name for name in names}
    tables = _of(connection, _TABLES, wanted)
    columns, keys, arrays, cascades = (
        _of(connection, query, wanted) for query in (_COLUMNS, _KEYS, _ARRAYS, _CASCADES)
    )
    return {
        name: MysqlCatalogueTable(
            name=name,
            kind=tables[name][0][0],
            engine=tables[name][0][1],
            shape=_shape(columns.get(name, ()), as_text.get(name, ())),
            primary_key=tuple(row[0] for row in keys.get(name, ())),
            array_index=next((str(row[0]) for row in arrays.get(name, ())), None),
            cascade=next((str(row[0]) for row in cascades.get(name, ())), None),
        )
        for name in wanted.values()
        if name in tables
    }


def read_shapes(
    connection: "Connection[Any]", names: Collection[TableName], as_text: Mapping[TableName, Collection[str]]
) -> dict[TableName, TableShape]:
    """Reads the columns of tables. Leaves out tables that are gone."""
    found = _of(connection, _COLUMNS, {(name.schema, name.table): name for name in names})
    return {name: _shape(columns, as_text.get(name, ())) for name, columns in found.items()}


def read_definitions(connection: "Connection[Any]", names: Collection[TableName]) -> dict[TableName, str]:
    """Returns a text by table that changes whenever the table is altered.

    An ALTER that leaves the columns as they are, or makes the same ones again, changes only the table's create time,
    which has seconds.
    """
    wanted = {(name.schema, name.table): name for name in names}
    altered, columns = (_of(connection, query, wanted) for query in (_ALTERED, _COLUMNS))
    return {name: sha256(repr((found, columns.get(name))).encode()).hexdigest() for name, found in altered.items()}


def read_size(connection: "Connection[Any]", name: TableName) -> int:
    """Returns about how many bytes the table has, from the engine's statistics."""
    found = _of(connection, _TABLES, {(name.schema, name.table): name})
    return int(found[name][0][2]) if name in found else 0


def read_cascade(connection: "Connection[Any]", name: TableName) -> str | None:
    """Returns the name of a foreign key by which MariaDB changes rows of the table without events, None for none.

    The statement that would create the table has it. Raises SourceError if the user may not see that statement.
    """
    try:
        # as bytes: the server writes the default of a binary column into the text as it is, in no character set
        connection.use_unicode = False
        ((_, written),) = rows(connection, f"SHOW CREATE TABLE {quoted(name.schema, name.table)}")
    except MySQLError as error:
        if error.args[0] not in _NOT_SHOWN:
            raise
        raise SourceError(
            f"the foreign keys of {name} cannot be seen: {error.args[1]}",
            expected="a user with the right SELECT on the whole table",
            remedy=f"run GRANT SELECT ON {name.schema}.{name.table} TO the pipeline's user, as an administrator",
        ) from error
    finally:
        connection.use_unicode = True
    return cascading_key(written.decode(errors="replace"))


def all_tables(connection: "Connection[Any]") -> list[tuple[str, str]]:
    """Returns database and name of every table that the user may see."""
    return [(str(database), str(table)) for database, table in rows(connection, _ALL_TABLES)]


def _of(
    connection: "Connection[Any]", query: str, wanted: Mapping[tuple[str, str], TableName]
) -> dict[TableName, list[tuple[Any, ...]]]:
    """Returns the rows of a query by table, without the table's name. Asks once per database."""
    found: dict[TableName, list[tuple[Any, ...]]] = {}
    databases = sorted({database for database, _ in wanted})
    for database in databases:
        tables = [table for each, table in wanted if each == database]
        for schema, table, *row in rows(connection, query, (database, tables)):
            name = wanted.get((str(schema), str(table)))
            if name is not None:
                found.setdefault(name, []).append(tuple(row))
    return found


def _shape(columns: Sequence[Sequence[Any]], as_text: Collection[str]) -> TableShape:
    return TableShape(
        columns=tuple(_column(row, as_text) for *row, is_left_out in columns if not is_left_out),
        left_out=tuple(str(name) for name, *_, is_left_out in columns if is_left_out),
    )


def _column(row: Sequence[Any], as_text: Collection[str]) -> MysqlColumn:
    name, written, charset, nullable, default, generated = row
    type_name = parse_column_type(written).name
    return MysqlColumn(
        name=name,
        written=written,
        type=text_of(type_name or written) if name in as_text and type_name else type_name or "",
        charset=charset,
        nullable=bool(nullable),
        default=default,
        generated=generated,
    ).as_now_named()
