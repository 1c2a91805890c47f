"""Writes names and values of the data as Spark SQL text."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from cdc_pipeline.errors import UsageError


def identifier(name: str) -> str:
    """Quotes a name with back-ticks. Any name is allowed, even one with dots and back-ticks."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """Returns a string literal under Spark's default escaping.

    The pipeline's sessions never substitute variables in SQL.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literal(value: object) -> str:
    """Returns a key value as SQL. Raises UsageError for a value whose text Spark might read as another one."""
    if isinstance(value, str):
        return text_literal(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise UsageError(f"{value!r} is no key value", expected="a whole number or a text")


def value_literal(value: Any, type_: str) -> str:
    """Returns any value that the lake may hold as SQL of this type."""
    if value is None:
        return f"CAST(NULL AS {type_})"
    if isinstance(value, list):
        element = type_.removeprefix("ARRAY<").removesuffix(">")
        return f"CAST(array({', '.join(value_literal(each, element) for each in value)}) AS {type_})"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    text = (
        value.isoformat(sep=" ")
        if isinstance(value, datetime)
        else f"{value:f}"
        if isinstance(value, Decimal)
        else str(value)
    )
    return f"CAST({text_literal(text)} AS {type_})"


def table_at(url: str) -> str:
    return f"delta.{identifier(url)}"
