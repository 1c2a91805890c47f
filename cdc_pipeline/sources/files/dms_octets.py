"""Bytes of AWS DMS: hexadecimal digits behind 0x -> the digits behind a backslash and x, as PostgreSQL prints them."""

import re
from collections.abc import Collection, Mapping
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.sources.debezium.envelope import Fields
from cdc_pipeline.sources.debezium.one_line import Undecodable
from cdc_pipeline.sources.files.record_values import Column
from cdc_pipeline.types import declared_type

Mask = npt.NDArray[np.bool_]
_DIGITS = "(?:[0-9A-Fa-f]{2})"
_ALONE, _OF_DMS = f"^{_DIGITS}+$", f"^0x({_DIGITS}*)$"
_OF_POSTGRES = r"\\x\1"


def octet_columns(types: Mapping[str, str], key: Collection[str] = ()) -> tuple[str, ...]:
    """Returns the columns of bytes. `types`: of each column, as pipeline.yml declares them.

    `key`: for a delete, the columns of the table's id, if it has one: the others are not needed.
    """
    return tuple(name for name, type_ in types.items() if _is_of_octets(type_) and (not key or name in key))


def with_octets(row: Fields, names: Collection[str]) -> Fields:
    """Returns the row with its columns `names` as PostgreSQL prints them. Raises Undecodable for digits without 0x."""
    found = {name: _digits(name, text) for name in names if isinstance(text := row.get(name), str)}
    return {**row, **found} if found else row


def whole_octets(column: Column) -> tuple[Column, Mask]:
    """Returns the column likewise, and its rows with digits alone."""
    if isinstance(column, list):
        alone = np.array([isinstance(value, str) and _is_alone(value) for value in column], np.bool_)
        return [_shown(value) if isinstance(value, str) else value for value in column], alone
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column, np.zeros(len(column), np.bool_)
    alone = pc.match_substring_regex(column, _ALONE)
    return pc.replace_substring_regex(column, _OF_DMS, _OF_POSTGRES), np.asarray(pc.fill_null(alone, fill_value=False))


@cache
def _is_of_octets(type_name: str) -> bool:
    return declared_type(type_name) == "bytea"


def _digits(name: str, text: str) -> str:
    if _is_alone(text):
        raise Undecodable(
            f"has what may be hexadecimal digits or base64 in {name}; expected 0x before them: set NoHexPrefix to "
            "false (files lack it: set DataFormat to parquet)"
        )
    return _shown(text)


def _is_alone(text: str) -> bool:
    return re.fullmatch(_ALONE, text) is not None


def _shown(text: str) -> str:
    found = re.fullmatch(_OF_DMS, text)
    return text if found is None else found.expand(_OF_POSTGRES)
