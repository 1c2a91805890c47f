"""A record's id and version, the columns that a change event has beside those of the source, a claim and its counts."""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

OPERATION = "_cdc_op"
VERSION = "_cdc_version"
COMMIT_TIME = "_cdc_commit_time"
TRANSACTION = "_cdc_transaction"
ABSENT = "_cdc_absent"
OLD_ID_PREFIX = "_cdc_old_"
DELETED = "_cdc_deleted"
STATE = "_cdc_state"
STATE_TYPE = "STRUCT<deletion: STRING, columns: MAP<STRING, STRING>>"
"""Spark's type of STATE: the version of the row's last deletion, and column -> version for columns that are older."""
BEFORE_ALL = "0"
"""The version of rows from before the first event, where fields of the events order them or their places do."""
END_VERSION, VALID_FROM, VALID_TO = "_cdc_end_version", "_cdc_valid_from", "_cdc_valid_to"
"""Columns of a history table: the version at which a period ended, and the commit times of its first version and of
that one. The first version is in VERSION. NULL as END_VERSION: the period goes on."""
CURRENT = "_cdc_current"
"""Column of a history table, and its data partition: whether the period goes on."""
CONFIRMED = "_cdc_confirmed"
"""Column of a history table: version -> commit time, of later events of the period, which changed no value."""
PARTIAL = "_cdc_partial"
"""Column of a history table: version -> columns, of the period's events that had no value for these columns."""
OWN_PREFIX = "_cdc_"
_HISTORY = ".history"
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
PARTITION_NAME, PARTITION_ENDED = "partition", "ended"
"""Keys in the `last_position` of a stream partition, beside the names of tables: its name in the source, and that
it was read to its end, so that no consumer takes it any more."""

_PART = r'("(?:[^"]|"")+"|[^".][^.]*)'
_THREE_PARTS = re.compile(rf"{_PART}\.{_PART}\.{_PART}")

SNAPSHOT_ORDINAL = 0
"""Events of the stream count from 1, so a snapshot row is older than every event at the cutoff position."""


class Operation(StrEnum):
    """What one row of a slice file does to its id.

    A key change is a DELETE of the old id and a MOVE of the new id at the same version. A MOVE is an update of the new
    id that also sets its absent columns, to the values of the old id's row; the columns `_cdc_old_<id column>` hold the
    old id. A TRUNCATE has no id and deletes every row with a lower version.
    """

    INSERT = "i"
    UPDATE = "u"
    DELETE = "d"
    MOVE = "m"
    TRUNCATE = "t"


def encode_position(position: int) -> str:
    """Returns a stream position as 16 hexadecimal digits: text order equals numeric order."""
    return f"{position:016x}"


def decode_position(text: str) -> int:
    """Inverts `encode_position`. Raises ValueError for other text."""
    return int(text, 16)


def parse_lsn(text: str) -> int:
    """Reads a position that PostgreSQL or a person wrote, such as `0/8D3FAF8`. Raises ValueError for other text."""
    found = _LSN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no LSN")
    return (int(found[1], 16) << 32) + int(found[2], 16)


def encode_version(commit_position: int, ordinal: int) -> str:
    """Returns (commit position, ordinal in the transaction) as 16-8 hexadecimal digits, which order like the pair."""
    return f"{commit_position:016x}-{ordinal:08x}"


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class TableName:
    """`db.schema.table` of the source. A part that contains a dot or starts with a quote is quoted as in SQL."""

    database: str
    schema: str
    table: str

    @classmethod
    def parse(cls, dotted: str) -> "TableName":
        """Accepts exactly three non-empty parts; raises ValueError otherwise."""
        found = _THREE_PARTS.fullmatch(dotted)
        if found is None:
            message = f"{dotted!r} is not of the form db.schema.table"
            raise ValueError(message)
        database, schema, table = map(_unquoted, found.groups())
        return cls(database=database, schema=schema, table=table)

    def __str__(self) -> str:
        return ".".join(map(_quoted, (self.database, self.schema, self.table)))

    @property
    def sql(self) -> str:
        """The table as the source's SQL names it."""
        return f"{_in_quotes(self.schema)}.{_in_quotes(self.table)}"


def history_name(table: TableName) -> TableName:
    """Returns the name of the table's history table in the lake."""
    return replace(table, table=f"{table.table}{_HISTORY}")


def table_of_history(history: TableName) -> TableName:
    """Returns the name of the table whose history table this is."""
    return replace(history, table=history.table.removesuffix(_HISTORY))


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def _quoted(part: str) -> str:
    return _in_quotes(part) if "." in part or part.startswith('"') else part


def _in_quotes(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a source table; `type` is a canonical type name of `cdc_pipeline.types`.

    `number` identifies the column in the source for as long as the table exists, also when it is renamed (PostgreSQL:
    `pg_attribute.attnum`); None where the source has no such number. MySQL has none either: there the pipeline numbers
    columns by name, so a column that is dropped and added again is another one. `missing` is the source's text of the
    value that rows written before the column was added show (PostgreSQL: `attmissingval`); None: they show NULL.
    """

    name: str
    type: str
    number: int | None = None
    missing: str | None = None

    def to_json(self) -> list[object]:
        """Returns two entries, or four for a column with a number. Hashed and stored: the form must never change."""
        known: list[object] = [self.name, self.type]
        return known if self.number is None else [*known, self.number, self.missing]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """The columns of a source table in the source's order, and its key. A keyless table is a multiset of rows.

    `generation` rises whenever the columns of the source table change: of two schemas of one table, the one with the
    higher generation is newer. 0 where the source gives no generation.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    generation: int = 0

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(self.column(name) for name in self.key)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def is_keyless(self) -> bool:
        return not self.key

    def without(self, excluded: Collection[str]) -> "TableSchema":
        """Returns the schema without the columns of these names."""
        return replace(self, columns=tuple(column for column in self.columns if column.name not in excluded))

    def to_json(self) -> dict[str, object]:
        """Returns what is hashed and stored. The form of a schema without a generation must never change."""
        known: dict[str, object] = {
            "columns": [column.to_json() for column in self.columns],
            "key": list(self.key),
        }
        return known | {"generation": self.generation} if self.generation else known

    @classmethod
    def from_json(cls, document: dict[str, object]) -> "TableSchema":
        columns, key, generation = document["columns"], document["key"], document.get("generation", 0)
        if not isinstance(columns, list) or not isinstance(key, list) or not isinstance(generation, int):
            message = f"{document!r} is not a table schema"
            raise TypeError(message)
        return cls(columns=tuple(map(_column_of, columns)), key=tuple(key), generation=generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownClaim:
    """A claim that the lake contains. `is_rewound`: a later rewind set the lake back to before the claim."""

    claim_id: UUID
    first_number: int
    last_number: int
    lake_version: int
    committed_at: datetime
    is_rewound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCounts:
    """What a claim did, in ids (keyless table: rows). `read` counts rows of slice files. A soft delete is an update.

    `ignored`: ids without a visible change, because the lake's row is newer or a delete found no row. `incomplete`: ids
    whose row is incomplete and therefore hidden. `tied`: how many sequences have more than one event of the same id.
    """

    read: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0
    incomplete: int = 0
    tied: int = 0


def _column_of(document: list[Any]) -> Column:
    name, type_, *numbered = document
    number, missing = numbered or (None, None)
    return Column(name=name, type=type_, number=number, missing=missing)
