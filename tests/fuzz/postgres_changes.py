"""Random statements for a small shop: changes of its tables and of their rows, valid for the tables as they are now."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import psycopg2

from tests.fuzz.postgres_values import WIDER, literal, new_type, rewritten

ORDERS = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text, price numeric(6,2), tag varchar(10), feels mood, made date)"
)
CUSTOMERS = "CREATE TABLE customers (id int, note text, size int2, PRIMARY KEY (id)) PARTITION BY RANGE (id)"
LEAVES = tuple(
    f"CREATE TABLE customers_{number} PARTITION OF customers FOR VALUES FROM ({number}00) TO ({number + 1}00)"
    for number in range(2)
)
NOTES = "CREATE TABLE notes (body text, amount int, at timestamptz); ALTER TABLE notes REPLICA IDENTITY FULL"
KEYLESS = "notes"
TABLES = ("orders", "customers", KEYLESS)
CREATE = (
    "CREATE TYPE mood AS ENUM ('calm', 'cross')",
    *(ORDERS, CUSTOMERS, *LEAVES, NOTES),
    "INSERT INTO orders SELECT n, 'n' || n, n, 't' || n, 'calm', '2020-02-29' FROM generate_series(1, 6) AS n",
    "INSERT INTO customers SELECT n * 40, 'c' || n, n FROM generate_series(0, 4) AS n",
    "INSERT INTO notes SELECT 'b' || n / 2, n / 2, '2020-02-29 12:00Z' FROM generate_series(1, 5) AS n",
)
AGAIN = {
    "orders": f"DROP TABLE orders; {ORDERS}",
    "customers": "; ".join(
        ("DROP TABLE customers", *(f"DROP TABLE IF EXISTS customers_{n}" for n in range(4)), CUSTOMERS, *LEAVES)
    ),
    "notes": f"DROP TABLE notes; {NOTES}",
}
NAMES = ("a", "b", "c d", "É", "note", "body")
CUT = "SELECT pg_logical_emit_message(true, 'cdc_pipeline', 'cut')"
MOST_TRIES = 50
_WEIGHTS = {"add": 3, "alter": 4, "of_table": 1, "of_partitions": 2, "cut": 1, "insert": 4, "update": 3, "delete": 2}

_COLUMNS = """
SELECT a.attnum, a.attname::text, format_type(a.atttypid, a.atttypmod), a.attgenerated <> '', a.attidentity::text,
       EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = a.attrelid AND i.indisprimary AND a.attnum = ANY (i.indkey))
FROM pg_attribute AS a WHERE a.attrelid = '{}'::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_LEAVES = """
SELECT c.relname::text, EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhrelid = c.oid)
FROM pg_class AS c WHERE c.relkind = 'r' AND c.relname LIKE 'customers#_%' ESCAPE '#' ORDER BY 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresShopColumn:
    number: int
    name: str
    type: str
    generated: bool
    identity: str
    in_key: bool

    @property
    def quoted(self) -> str:
        return f'"{self.name}"'

    @property
    def written(self) -> bool:
        return not self.generated and self.identity != "a"


@dataclass(slots=True, kw_only=True)
class PostgresChanges:
    """`query` runs one statement and commits it. Every statement is tried, and taken back, before it is given."""

    chance: Random
    query: Callable[[str], Sequence[tuple[Any, ...]]]

    def change(self) -> str:
        """One transaction, or a statement of its own."""
        if self.chance.random() < 0.25:
            return self._transaction()
        while True:
            statement = self._statement()
            if statement.startswith(("VACUUM", "CLUSTER", "SELECT")) or self._works(statement):
                return statement

    def _works(self, statement: str) -> bool:
        self.query("BEGIN")
        try:
            self.query(statement)
        except psycopg2.Error:
            return False
        finally:
            self.query("ROLLBACK")
        return True

    def _transaction(self) -> str:
        """Each statement for the tables as those before it leave them."""
        self.query("BEGIN")
        done = list[str]()
        wanted = self.chance.randint(2, 5)
        for _ in range(MOST_TRIES):
            statement = self._statement()
            if statement.startswith(("VACUUM", "CLUSTER")):
                continue
            self.query("SAVEPOINT before")
            try:
                self.query(statement)
            except psycopg2.Error:
                self.query("ROLLBACK TO before")
                continue
            done.append(statement)
            if len(done) == wanted:
                break
        self.query("ROLLBACK")
        if self.chance.random() < 0.3 and len(done) > 1:
            place = self.chance.randrange(1, len(done))
            done = [*done[:place], "SAVEPOINT here", *done[place:], "ROLLBACK TO here"]
        return "; ".join(["BEGIN", *done, "ROLLBACK" if self.chance.random() < 0.2 else "COMMIT"])

    def _statement(self) -> str:
        table = self.chance.choice(TABLES)
        kind = self.chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        return str(getattr(self, f"_{kind}")(table, self._columns(table)))

    def _columns(self, table: str) -> list[PostgresShopColumn]:
        names = ("number", "name", "type", "generated", "identity", "in_key")
        found = self.query(_COLUMNS.format(table))
        return [PostgresShopColumn(**dict(zip(names, row, strict=True))) for row in found]

    def _add(self, table: str, columns: list[PostgresShopColumn]) -> str:
        free = [name for name in NAMES if name not in {column.name for column in columns}]
        name, type_ = self.chance.choice(free or ["none"]), new_type(self.chance)
        # the fast lake tells rows without a key apart by values that can be hashed
        type_ = "int8" if table == "notes" and type_ == "int[]" else type_
        number = next((column for column in columns if column.type in {"integer", "smallint", "bigint"}), columns[0])
        ends = (
            type_,
            type_,
            f"{type_} DEFAULT {literal(type_, self.chance)}",
            f"{type_} NOT NULL DEFAULT {literal(type_, self.chance)}",
            "timestamptz DEFAULT now()",
            "timestamptz DEFAULT clock_timestamp()",
            "float8 DEFAULT random()",
            "serial",
            "int GENERATED BY DEFAULT AS IDENTITY",
            f"bigint GENERATED ALWAYS AS ({number.quoted} * 2) STORED",
            f"bigint GENERATED ALWAYS AS ({number.quoted} + 1) VIRTUAL",
        )
        return f'ALTER TABLE {table} ADD "{name}" {self.chance.choice(ends)}'

    def _alter(self, table: str, columns: list[PostgresShopColumn]) -> str:
        column, other = self.chance.choice(columns), self.chance.choice(columns)
        outside = [each for each in columns if not each.in_key]
        drop = [f"ALTER TABLE {table} DROP {self.chance.choice(outside).quoted}"] if outside else []
        name = column.quoted
        alter = f"ALTER TABLE {table} ALTER {name}"
        begin = f"ALTER TABLE {table} RENAME {name} TO between; ALTER TABLE {table} RENAME {other.quoted}"
        type_, value = rewritten(column.type, name, self.chance)
        rename = f'ALTER TABLE {table} RENAME {name} TO "{self.chance.choice(NAMES)}"'
        widen = f"{alter} TYPE {WIDER.get(column.type, 'text')}"
        kinds = (
            *drop,
            rename,
            rename,
            f"{begin} TO {name}; ALTER TABLE {table} RENAME between TO {other.quoted}",
            widen,
            widen,
            f"{alter} DROP DEFAULT, ALTER {name} TYPE {type_} USING {value}",
            f"{alter} {self.chance.choice(['SET', 'DROP'])} NOT NULL",
            f"{alter} SET DEFAULT {literal(column.type, self.chance)}",
        )
        return self.chance.choice(kinds)

    def _of_table(self, table: str, columns: list[PostgresShopColumn]) -> str:
        labels = [label for (label,) in self.query("SELECT enumlabel::text FROM pg_enum ORDER BY oid")]
        new = f"'m{self.chance.randrange(1000)}'"
        key = ", ".join(column.quoted for column in self.chance.sample(columns, min(2, len(columns))))
        (constraint,) = self.query(
            f"SELECT max(conname::text) FROM pg_constraint WHERE conrelid = '{table}'::regclass AND contype = 'p'"
        )[0]
        kinds = (
            f"VACUUM FULL {table}",
            f'CLUSTER {table} USING "{constraint}"',
            f"TRUNCATE {table} RESTART IDENTITY CASCADE",
            "TRUNCATE orders, notes",
            f"ALTER TABLE {table} REPLICA IDENTITY FULL",
            f"COMMENT ON TABLE {table} IS 'shop'",
            AGAIN[table],
            f"ALTER TYPE mood RENAME VALUE '{self.chance.choice(labels)}' TO {new}",
            f"ALTER TYPE mood ADD VALUE {new}",
            f'ALTER TABLE {table} DROP CONSTRAINT "{constraint}", ADD PRIMARY KEY ({key})',
        )
        return self.chance.choice(kinds)

    def _of_partitions(self, table: str, columns: list[PostgresShopColumn]) -> str:
        del table, columns
        here = dict(self.query(_LEAVES))
        leaf = f"customers_{self.chance.randrange(4)}"
        low = 100 * int(leaf[-1])
        bounds = f"FOR VALUES FROM ({low}) TO ({low + 100})"
        key = next((column.quoted for column in self._columns("customers") if column.in_key), "id")
        row = f"INSERT INTO {leaf} ({key}) VALUES ({low + self.chance.randrange(100)})"
        if leaf not in here:
            made = f"CREATE TABLE {leaf} (LIKE customers INCLUDING ALL)"
            return self.chance.choice(
                [
                    f"CREATE TABLE {leaf} PARTITION OF customers {bounds}",
                    f"CREATE TABLE {leaf} PARTITION OF customers {bounds}; {row}",
                    f"{made}; {row}",
                    f"{made}; {row}; ALTER TABLE customers ATTACH PARTITION {leaf} {bounds}",
                ]
            )
        moved = f"DETACH PARTITION {leaf}" if here[leaf] else f"ATTACH PARTITION {leaf} {bounds}"
        return self.chance.choice(
            [row, f"TRUNCATE {leaf}", f"DROP TABLE {leaf}", f"ALTER TABLE customers {moved}", f"DELETE FROM {leaf}"]
        )

    def _insert(self, table: str, columns: list[PostgresShopColumn]) -> str:
        told = [column for column in columns if column.written and (column.in_key or self.chance.random() < 0.7)]
        if not told:
            return f"INSERT INTO {table} DEFAULT VALUES"
        rows = (
            ", ".join(literal(column.type, self.chance, in_key=column.in_key) for column in told)
            for _ in range(self.chance.randint(1, 3))
        )
        values = ", ".join(f"({row})" for row in rows)
        return f"INSERT INTO {table} ({', '.join(column.quoted for column in told)}) VALUES {values}"

    def _update(self, table: str, columns: list[PostgresShopColumn]) -> str:
        written = [column for column in columns if column.written]
        changed = self.chance.sample(written, min(len(written), self.chance.randint(1, 2)))
        sets = ", ".join(
            f"{column.quoted} = {column.quoted} + {self.chance.choice([1, 40])}"
            if column.in_key and column.type in {"integer", "smallint", "bigint"}
            else f"{column.quoted} = {literal(column.type, self.chance, in_key=column.in_key)}"
            for column in changed
        )
        return f"UPDATE {table} SET {sets} WHERE {self._some(table)}"

    def _some(self, table: str) -> str:
        """Some rows, the same ones whenever the table has the same rows."""
        return f"hashtext({table}::text) % {self.chance.randint(2, 5)} = 0"

    def _delete(self, table: str, columns: list[PostgresShopColumn]) -> str:
        del columns
        return f"DELETE FROM {table} WHERE {self._some(table)}"

    def _cut(self, table: str, columns: list[PostgresShopColumn]) -> str:
        del table, columns
        return CUT
