"""Kinds of columns in the tables of the metadata store."""

from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, DateTime, Dialect, ForeignKey, Text, text
from sqlalchemy.types import TypeDecorator

NOW = text("clock_timestamp()")
OFFSET_RANGE = 'CREATE TYPE cdc.offset_range AS RANGE (subtype = text, collation = "C")'
SLICE_RANGE = """cdc.offset_range(
    table_id::text || ':' || stream_partition::text || ':' || start_offset,
    table_id::text || ':' || stream_partition::text || ':' || end_offset)"""
"""The range of a slice as a range of texts. Each table and stream partition has a prefix of its own, so only their own
ranges can overlap."""


class State(TypeDecorator[StrEnum]):
    """Text in the store, a member of the enumeration in Python."""

    impl = Text
    cache_ok = True

    def __init__(self, states: type[StrEnum]) -> None:
        super().__init__()
        self.states = states

    def process_bind_param(self, value: StrEnum | None, dialect: Dialect) -> str | None:
        del dialect
        return None if value is None else value.value

    def process_result_value(self, value: Any | None, dialect: Dialect) -> StrEnum | None:
        del dialect
        return None if value is None else self.states(value)


def one_of(column: str, states: type[StrEnum]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({quoted(tuple(states))})")


def quoted(states: tuple[StrEnum, ...]) -> str:
    return ", ".join(f"'{state.value}'" for state in states)


def offset(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text(collation="C"), nullable=nullable)


def time(name: str, *, nullable: bool = True) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


def table_id(*, primary_key: bool = False) -> Column[int]:
    return Column("table_id", ForeignKey("cdc.source_table.table_id"), primary_key=primary_key, nullable=False)
