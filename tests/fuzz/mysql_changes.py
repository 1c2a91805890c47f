"""Random statements for a small shop on MariaDB or MySQL, for its tables as they are now. Some of them fail."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fuzz.mysql_values import DATES, INTEGERS, literal, new_type, other_type

ORDERS = (
    "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT, price DECIMAL(6,2), tag VARCHAR(10),"
    " feels ENUM('calm','cross'), made DATE)"
)
CUSTOMERS = (
    "CREATE TABLE customers (id INT PRIMARY KEY, note TEXT, size SMALLINT) PARTITION BY RANGE (id)"
    " (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200), PARTITION p2 VALUES LESS THAN (300))"
)
KEYLESS = "notes"
NOTES = f"CREATE TABLE {KEYLESS} (body TEXT, amount INT, at TIMESTAMP(6) NULL)"
AGAIN = {"orders": ORDERS, "customers": CUSTOMERS, KEYLESS: NOTES}
CREATE = (
    *AGAIN.values(),
    "INSERT INTO orders VALUES " + ", ".join(f"({n}, 'n{n}', {n}, 't{n}', 'calm', '2020-02-29')" for n in range(1, 7)),
    "INSERT INTO customers VALUES " + ", ".join(f"({n * 40}, 'c{n}', {n})" for n in range(5)),
    "INSERT INTO notes VALUES " + ", ".join(f"('b{n // 2}', {n // 2}, '2020-02-29 12:00:00')" for n in range(1, 6)),
)
NAMES = ("a", "b", "c d", "É", "note", "body")
_WEIGHTS = {"add": 3, "alter": 4, "of_table": 1, "of_partitions": 1, "cut": 1, "insert": 4, "update": 3, "delete": 2}
_WEIGHTS["unusual"] = 1
STRICT = "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE'"
"""A zero date would not arrive: it is quarantined."""
_LENIENT = " leniently"
_COLUMNS = """
SELECT column_name, column_type, coalesce(generation_expression, '') <> '', extra LIKE '%auto_increment%',
       column_key = 'PRI'
FROM information_schema.columns WHERE table_schema = database() AND table_name = '{}' ORDER BY ordinal_position
"""
_PARTITIONS = """
SELECT partition_name FROM information_schema.partitions
WHERE table_schema = database() AND table_name = 'customers' AND partition_name IS NOT NULL ORDER BY partition_name
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlShopColumn:
    name: str
    type: str
    generated: bool
    numbered: bool
    in_key: bool

    @property
    def quoted(self) -> str:
        return f"`{self.name}`"

    @property
    def has_date(self) -> bool:
        return self.type.startswith(DATES)


@dataclass(slots=True, kw_only=True)
class MysqlChanges:
    """`query` runs one statement and commits it. The log has no statement that failed, so none is tried before.

    `keeps_ids`: no table loses its primary key, since a history needs it.
    """

    chance: Random
    keeps_ids: bool
    query: Callable[[str], Sequence[tuple[Any, ...]]]

    def change(self) -> str:
        """One statement, or several of one session, divided by semicolons."""
        if self.chance.random() < 0.75:
            return self._statement()
        done = [self._statement() for _ in range(self.chance.randint(2, 5))]
        if self.chance.random() < 0.3:
            place = self.chance.randrange(1, len(done))
            done = [*done[:place], "SAVEPOINT here", *done[place:], "ROLLBACK TO here"]
        return "; ".join(["BEGIN", *done, "ROLLBACK" if self.chance.random() < 0.2 else "COMMIT"])

    def _statement(self) -> str:
        table = self.chance.choice(list(AGAIN))
        kind = self.chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        return str(getattr(self, f"_{kind}")(table, self._columns(table)))

    def _columns(self, table: str) -> list[MysqlShopColumn]:
        names = ("name", "type", "generated", "numbered", "in_key")
        found = self.query(_COLUMNS.format(table))
        return [MysqlShopColumn(**dict(zip(names, row, strict=True))) for row in found]

    def _add(self, table: str, columns: list[MysqlShopColumn]) -> str:
        free = [name for name in NAMES if name not in {column.name for column in columns}]
        name, type_ = self.chance.choice(free or ["none"]), new_type(self.chance)
        number = next((column for column in columns if column.type.startswith(INTEGERS)), columns[0])
        ends = (
            *(f"{type_} NULL",) * 4,
            f"{type_} DEFAULT {literal(type_, self.chance)}",
            f"{type_} NOT NULL DEFAULT {literal(type_, self.chance, nullable=False)}",
            f"{type_} {'NULL' if type_.startswith(DATES) else 'NOT NULL'}",
            "TIMESTAMP DEFAULT CURRENT_TIMESTAMP",
            "TIMESTAMP DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP",
            "DOUBLE DEFAULT (RAND())",
            "INT AUTO_INCREMENT UNIQUE",
            f"BIGINT AS ({number.quoted} * 2) STORED",
            f"BIGINT AS ({number.quoted} + 1) VIRTUAL",
        )
        return f"ALTER TABLE {table} ADD `{name}` {self.chance.choice(ends)}{self._place(columns)}"

    def _place(self, columns: list[MysqlShopColumn]) -> str:
        """Where a column is put; mostly at the end."""
        after = f" AFTER {self.chance.choice(columns).quoted}"
        return self.chance.choice(["", "", "", " FIRST", after])

    def _alter(self, table: str, columns: list[MysqlShopColumn]) -> str:
        column, other = self.chance.choice(columns), self.chance.choice(columns)
        outside = self.chance.choice([each for each in columns if not each.in_key] or columns)
        name, new, wider = column.quoted, self.chance.choice(NAMES), other_type(outside.type, self.chance)
        null, again = self.chance.choice(["NULL", "NOT NULL"]), f"; ALTER TABLE {table} "
        last = f"RENAME COLUMN between TO {other.quoted}"
        kinds = (
            f"DROP {outside.quoted}",
            f"RENAME COLUMN {name} TO `{new}`",
            f"CHANGE {outside.quoted} `{new}` {outside.type} {null}",
            f"RENAME COLUMN {name} TO {other.quoted}, RENAME COLUMN {other.quoted} TO {name}",
            f"RENAME COLUMN {name} TO between{again}RENAME COLUMN {other.quoted} TO {name}{again}{last}",
            f"MODIFY {outside.quoted} {wider}",
            f"MODIFY {outside.quoted} {wider}",
            f"MODIFY {outside.quoted} {outside.type}{self._place(columns)}",
            f"MODIFY {outside.quoted} {outside.type} {null}",
            *([f"MODIFY {outside.quoted} {outside.type} NOT NULL{_LENIENT}"] if not outside.has_date else []),
            f"DROP {outside.quoted}, ADD {outside.quoted} {outside.type} NULL{self._place(columns)}",
            f"DROP {outside.quoted}; ALTER TABLE {table} ADD {outside.quoted} {outside.type} NULL",
            f"ALTER {name} SET DEFAULT {literal(column.type, self.chance)}",
            f"ALTER {name} DROP DEFAULT",
        )
        change = self.chance.choice(kinds)
        if not change.endswith(_LENIENT):
            return f"ALTER TABLE {table} {change}"
        return f"SET SESSION sql_mode = 0; ALTER TABLE {table} {change.removesuffix(_LENIENT)}; {STRICT}"

    def _of_table(self, table: str, columns: list[MysqlShopColumn]) -> str:
        key = ", ".join(each.quoted for each in self.chance.sample(columns, min(2, len(columns))))
        alter = f"ALTER TABLE {table}"
        copied = f"CREATE TABLE copied LIKE {table}; INSERT INTO copied SELECT * FROM {table}"
        kinds = (
            f"TRUNCATE {table}",
            f"DROP TABLE {table}; {AGAIN[table]}",
            f"CREATE OR REPLACE{AGAIN[table].removeprefix('CREATE')}",
            f"RENAME TABLE {table} TO away; RENAME TABLE away TO {table}",
            f"RENAME TABLE {table} TO away; {AGAIN[table]}; DROP TABLE away",
            f"{copied}; RENAME TABLE {table} TO away, copied TO {table}; DROP TABLE away",
            f"{alter} DROP PRIMARY KEY, ADD PRIMARY KEY ({key})",
            f"{alter} ADD CONSTRAINT pk PRIMARY KEY ({key})",
            f"{alter} {'FORCE' if self.keeps_ids else 'DROP PRIMARY KEY'}",
            f"{alter} ADD INDEX ({columns[0].quoted})",
            f"{alter} COMMENT = 'shop', AUTO_INCREMENT = 1000",
            f"{alter} ENGINE = InnoDB",
            f"{alter} FORCE",
            f"{alter} CONVERT TO CHARACTER SET {self.chance.choice(['latin1', 'utf8mb4'])}",
            f"OPTIMIZE TABLE {table}",
            f"DROP TABLE IF EXISTS beside; CREATE TABLE beside LIKE {table}",
        )
        return self.chance.choice(kinds)

    def _of_partitions(self, table: str, columns: list[MysqlShopColumn]) -> str:
        del table, columns
        here = [str(name) for (name,) in self.query(_PARTITIONS)]
        if not here:
            return "SELECT 1"
        one, last = self.chance.choice(here), int(here[-1][1:])
        alter = "ALTER TABLE customers"
        plain = "CREATE TABLE out_of LIKE customers; ALTER TABLE out_of REMOVE PARTITIONING"
        kinds = (
            f"{alter} TRUNCATE PARTITION {one}",
            f"{alter} DROP PARTITION {one}",
            f"{alter} ADD PARTITION (PARTITION p{last + 1} VALUES LESS THAN ({last * 100 + 200}))",
            f"{alter} REBUILD PARTITION {one}",
            f"{alter} REMOVE PARTITIONING",
            f"{plain}; {alter} EXCHANGE PARTITION {one} WITH TABLE out_of; DROP TABLE out_of",
        )
        return self.chance.choice(kinds)

    def _insert(self, table: str, columns: list[MysqlShopColumn]) -> str:
        told = [each for each in columns if not each.generated and (each.in_key or self.chance.random() < 0.7)]
        rows = (
            ", ".join(literal(each.type, self.chance, in_key=each.in_key) for each in told)
            for _ in range(self.chance.randint(1, 3))
        )
        verb = self.chance.choice(["INSERT INTO", "INSERT INTO", "REPLACE INTO"])
        values = ", ".join(f"({row})" for row in rows)
        end = " ON DUPLICATE KEY UPDATE " if verb == "INSERT INTO" and told and self.chance.random() < 0.3 else ""
        sets = ", ".join(f"{each.quoted} = VALUES({each.quoted})" for each in told) if end else ""
        return f"{verb} {table} ({', '.join(each.quoted for each in told)}) VALUES {values}{end}{sets}"

    def _update(self, table: str, columns: list[MysqlShopColumn]) -> str:
        written = [each for each in columns if not each.generated]
        changed = self.chance.sample(written, min(len(written), self.chance.randint(1, 2)))
        sets = ", ".join(
            f"{each.quoted} = {each.quoted} + {self.chance.choice([1, 40])}"
            if each.in_key and each.type.startswith(INTEGERS)
            else f"{each.quoted} = {literal(each.type, self.chance, in_key=each.in_key)}"
            for each in changed
        )
        return f"UPDATE {table} SET {sets} WHERE {self._some(columns)}"

    def _some(self, columns: list[MysqlShopColumn]) -> str:
        """Some rows, the same ones whenever the table has the same rows."""
        values = ", ".join(column.quoted for column in columns)
        return f"CRC32(CONCAT_WS(',', {values})) % {self.chance.randint(2, 5)} = 0"

    def _delete(self, table: str, columns: list[MysqlShopColumn]) -> str:
        return f"DELETE FROM {table} WHERE {self._some(columns)}"

    def _unusual(self, table: str, columns: list[MysqlShopColumn]) -> str:
        """Rows that the log has in another way."""
        row = self._update(table, columns)
        variable, value, usual = self.chance.choice(
            [
                ("binlog_format", "STATEMENT", "ROW"),
                ("binlog_row_image", "MINIMAL", "FULL"),
                ("binlog_row_image", "NOBLOB", "FULL"),
            ]
        )
        end = self.chance.choice(["COMMIT", "ROLLBACK"])
        return self.chance.choice(
            [
                f"SET SESSION {variable} = '{value}'; {row}; SET SESSION {variable} = '{usual}'",
                f"XA START 'x'; {row}; XA END 'x'; XA PREPARE 'x'; XA {end} 'x'",
                f"INSERT INTO {table} SELECT * FROM {table} WHERE {self._some(columns)}",
            ]
        )

    def _cut(self, table: str, columns: list[MysqlShopColumn]) -> str:
        del table, columns
        return "UPDATE cdc_marker SET message = 'cut', sent = sent + 1"
