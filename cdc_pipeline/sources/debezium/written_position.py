"""Reads positions that people write for events without a database: values of the fields that order the events."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cdc_pipeline.errors import UsageError
from cdc_pipeline.record import BEFORE_ALL
from cdc_pipeline.sources.copied_rows import WrittenPosition
from cdc_pipeline.sources.debezium.versions import Unordered, sequence
from cdc_pipeline.time_slice import EPOCH

START = "start"
_BEHIND_EQUALS = "~~~"
"""Sorts behind all that follows equal fields in a version: further fields, rank and hash, and the mark of truncates."""
_MICROSECOND = timedelta(microseconds=1)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
"""Of a field that counts. ISO also reads one as a date: 30450612 as a day of the year 3045."""


def position_in_order(text: str, fields: Sequence[str], *, begins_with_time: bool = False) -> WrittenPosition:
    """Reads `start`, or the values of `fields`, or of the first of them, separated by commas.

    Rows as of these values contain the events with the same or lower ones. `begins_with_time`: the first field is a
    time in microseconds, and is written as a time. Raises UsageError for any other text.
    """
    if text == START:
        return WrittenPosition(position=None, row_version=BEFORE_ALL)
    values: list[object] = [each.strip() for each in text.split(",")]
    is_count = not begins_with_time and _NUMBER.fullmatch(str(values[0]))
    time = None if is_count else _time_of(str(values[0]))
    if begins_with_time and time is not None:
        values[0] = (time - EPOCH) // _MICROSECOND
    numbered = {str(number): value for number, value in enumerate(values)}
    is_number = not begins_with_time or str(values[0]).isdecimal()
    if not fields or len(values) > len(fields) or "" in values or not is_number:
        raise _no_position(text, fields)
    try:
        version = sequence(numbered, tuple(numbered)) + _BEHIND_EQUALS
    except Unordered as error:
        raise _no_position(text, fields) from error
    return WrittenPosition(position=None, row_version=version, time=time)


def _time_of(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _no_position(text: str, fields: Sequence[str]) -> UsageError:
    shown = "".join(f", or values of {', '.join(fields)} as the events have them" for _ in fields[:1])
    return UsageError(
        f"--as-of {text!r} is no position of the source",
        expected=f"{START}, for rows from before the first event{shown}",
        remedy=f"write --as-of {START}: events that the export contains are applied again, and the last of an id stays",
    )
