"""Typed values -> the texts that `parse_text` reads as the same values."""

import pyarrow as pa

from cdc_pipeline.types.table import ColumnType


def printed_text(value: pa.Scalar, column_type: ColumnType) -> str | None:
    """Returns a value of the lake as PostgreSQL prints it; None for NULL."""
    if not value.is_valid:
        return None
    kind = value.type
    if column_type.element is not None:
        delimiter = ";" if column_type.element.name == "box" else ","
        return "{" + delimiter.join(_element(each, column_type.element) for each in value.values) + "}"
    if pa.types.is_boolean(kind):
        return "t" if value.as_py() else "f"
    if pa.types.is_binary(kind):
        return f"\\x{value.as_py().hex()}"
    if pa.types.is_decimal(kind):
        return f"{value.as_py():f}"
    text: str = value.cast(pa.string()).as_py()
    return _moment(text) if pa.types.is_timestamp(kind) else text


def _element(value: pa.Scalar, column_type: ColumnType) -> str:
    text = printed_text(value, column_type)
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _moment(text: str) -> str:
    """Returns a time without zeros at the end of its fraction, which Arrow writes, and in UTC with its offset."""
    stamp = text.removesuffix("Z")
    shown = stamp.rstrip("0").removesuffix(".") if "." in stamp else stamp
    return f"{shown}+00" if text.endswith("Z") else shown
