"""Turns change events, as texts of their source, into rows of a slice file; says which events cannot become a row."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.record import (
    ABSENT,
    COMMIT_TIME,
    OLD_ID_PREFIX,
    OPERATION,
    OWN_PREFIX,
    TRANSACTION,
    Operation,
    TableSchema,
)
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.copied_rows import CopiedRows, UnfitRow
from cdc_pipeline.types import ColumnType, arrow_schema, parse_text, resolve
from cdc_pipeline.types.masks import rows_refused, without

COLUMN_NUMBERS = OWN_PREFIX + "numbers"
Mask = npt.NDArray[np.bool_]
Payload = Mapping[str, str | None]
_NOT_UTF8 = "surrogateescape"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTexts:
    """Columns of change events, one entry per event.

    The pipeline's own columns are typed. `texts` has the source's columns and `old_id` the old id's columns, both as
    the source's texts, which may be invalid UTF-8.
    """

    operation: pa.Array
    version: pa.Array
    commit_time: pa.Array
    transaction: pa.Array
    absent: pa.Array
    old_id: Mapping[str, pa.Array]
    texts: Mapping[str, pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Values of one column that a row must not have, and why. `rows` is a mask over all rows."""

    column: str
    reason: str
    rows: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """An event that cannot become a row, by its row number, with its first refusal."""

    row: int
    column: str
    reason: str


def typed_columns(texts: Mapping[str, pa.Array], schema: TableSchema) -> tuple[dict[str, pa.Array], list[Refusal]]:
    """Parses `texts`, old ids included, into typed columns by name. Returns them with the refused values.

    Refused values are NULL in the columns. A NULL in an id column is refused, too.
    """
    columns: dict[str, pa.Array] = {}
    refusals = [
        Refusal(column=name, reason=f"the id column {name} is NULL", rows=np.asarray(texts[name].is_null()))
        for name in schema.key
    ]
    for name, column in texts.items():
        column_type = resolve(schema.column(name.removeprefix(OLD_ID_PREFIX)).type)
        columns[name], refused = _parsed(column, column_type)
        refusals += [
            Refusal(column=name, reason=f"the value of {name} {reason} {column_type.name}", rows=mask)
            for reason, mask in refused.items()
        ]
    return columns, refusals


def misfits(refusals: Sequence[Refusal]) -> tuple[Misfit, ...]:
    """Returns the rows with a refused value, one entry each, in ascending row number."""
    found: dict[int, Misfit] = {}
    for refusal in refusals:
        for row in map(int, np.flatnonzero(refusal.rows)):
            found.setdefault(row, Misfit(row=row, column=refusal.column, reason=refusal.reason))
    return tuple(found[row] for row in sorted(found))


def typed_rows(events: EventTexts, schema: TableSchema) -> tuple[pa.Table, tuple[Misfit, ...]]:
    """Returns every event as a row of a slice file, and those that cannot become a row."""
    old_id = {OLD_ID_PREFIX + name: texts for name, texts in events.old_id.items()}
    columns, refusals = typed_columns({**events.texts, **old_id}, schema)
    own = (events.operation, events.version, events.commit_time, events.transaction, events.absent)
    fields = event_schema(schema)
    rows = pa.table([*own, *(columns[name] for name in fields.names[len(own) :])], fields)
    return rows, misfits(refusals)


def copied_rows(texts: Mapping[str, pa.Array], schema: TableSchema) -> CopiedRows:
    """Parses the columns of one block of a copy. Rows with values that do not fit are returned beside the others."""
    columns, refusals = typed_columns(texts, schema)
    return CopiedRows(
        rows=pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=arrow_schema(schema)),
        unfit_rows=tuple(
            UnfitRow(
                row=misfit.row,
                column=misfit.column,
                reason=misfit.reason,
                texts={name: column[misfit.row].as_py() for name, column in texts.items()},
            )
            for misfit in misfits(refusals)
        ),
    )


def payload(events: EventTexts, row: int) -> dict[str, str | None]:
    """Returns the whole event as texts by column, for quarantine. Bytes that are not UTF-8 become lone surrogates."""
    transaction, absent = events.transaction[row].as_py(), events.absent[row].as_py()
    own = {
        OPERATION: events.operation[row].as_py(),
        COMMIT_TIME: events.commit_time[row].as_py().isoformat(),
        TRANSACTION: None if transaction is None else str(transaction),
        ABSENT: None if absent is None else json.dumps(absent, ensure_ascii=False),
    }
    old_id = {OLD_ID_PREFIX + name: _text(texts[row]) for name, texts in events.old_id.items()}
    return {**own, **old_id, **{name: _text(texts[row]) for name, texts in events.texts.items()}}


def snapshot_row_payload(texts: Mapping[str, bytes | None], cutoff_time: datetime) -> dict[str, str | None]:
    """Returns the payload of a copied row, as an insert at the time of the cutoff."""
    own = {OPERATION: Operation.INSERT.value, COMMIT_TIME: cutoff_time.isoformat(), TRANSACTION: None, ABSENT: None}
    return {**own, **{name: _decoded(octets) for name, octets in texts.items()}}


def with_numbers(event: Payload, schema: TableSchema) -> dict[str, str | None]:
    """Adds the columns' numbers to a payload, as far as they have any, since another column may get the name of one."""
    numbers = {column.name: column.number for column in schema.columns if column.number is not None}
    return {**event, COLUMN_NUMBERS: json.dumps(numbers, ensure_ascii=False)} if numbers else dict(event)


def numbers_in(event: Payload) -> dict[str, int]:
    """Returns the numbers of a payload's columns by name; none for a column that had none."""
    numbers: dict[str, int] = json.loads(event.get(COLUMN_NUMBERS) or "{}")
    return numbers


def why_unreadable(event: Mapping[str, object]) -> str:
    """Returns which field of a payload cannot be read back, as after a correction by hand; "" if all can."""
    for name, value in event.items():
        if value is not None and not isinstance(value, str):
            return f"{name} of its payload is {json.dumps(value, ensure_ascii=False)}; expected a text in quotes"
    for name, read in _OWN_FIELDS.items():
        try:
            read(event.get(name))
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            return f"{name} of its payload is {json.dumps(event.get(name))}; expected its text as it was: {error}"
    return ""


def payload_columns(event: Payload) -> tuple[str, ...]:
    """Returns the names of the source's columns that an event has."""
    return tuple(name for name in event if not name.startswith(OWN_PREFIX))


def events_of(payloads: Sequence[Payload], versions: Sequence[str], schema: TableSchema) -> EventTexts:
    """Reads payloads back into events: the inverse of `payload`.

    `schema` has the columns of the payloads, with the types that they have now.
    """
    return EventTexts(
        operation=pa.array([each[OPERATION] for each in payloads], pa.string()),
        version=pa.array(versions, pa.string()),
        commit_time=pa.array(
            [datetime.fromisoformat(each[COMMIT_TIME] or "") for each in payloads], pa.timestamp("us", "UTC")
        ),
        transaction=pa.array([_number(each.get(TRANSACTION)) for each in payloads], pa.int64()),
        absent=pa.array([_absent(each.get(ABSENT)) for each in payloads], pa.list_(pa.string())),
        old_id={name: _octets(payloads, OLD_ID_PREFIX + name) for name in schema.key},
        texts={name: _octets(payloads, name) for name in schema.names},
    )


def shown(value: object) -> str:
    """Returns a payload's text in a printable form: bytes that are not UTF-8 become escapes.

    Another value, as after a correction by hand, is shown as JSON.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode(errors=_NOT_UTF8).decode(errors="backslashreplace")


def _parsed(texts: pa.Array, column_type: ColumnType) -> tuple[pa.Array, dict[str, Mask]]:
    refused: dict[str, Mask] = {}
    try:
        parsed = parse_text(texts, column_type)
    except DecodeError:
        octets = texts.cast(pa.binary())
        undecodable = rows_refused(octets, lambda part: _parse_or_refuse(part, column_type))
        refused["is no text of the type"] = np.asarray(undecodable)
        parsed = parse_text(without(octets, undecodable), column_type)
    if parsed.unfit is not None:
        refused["does not fit the lake's"] = np.asarray(pc.fill_null(parsed.unfit, fill_value=False))
    return parsed.values, refused


def _parse_or_refuse(texts: pa.Array, column_type: ColumnType) -> None:
    try:
        parse_text(texts, column_type)
    except DecodeError as error:
        raise pa.ArrowInvalid(str(error)) from error


def _text(value: pa.Scalar) -> str | None:
    return _decoded(value.cast(pa.binary()).as_py())


def _decoded(octets: bytes | None) -> str | None:
    return None if octets is None else octets.decode(errors=_NOT_UTF8)


def _octets(payloads: Sequence[Payload], name: str) -> pa.Array:
    texts = (each.get(name) for each in payloads)
    return pa.array([None if text is None else text.encode(errors=_NOT_UTF8) for text in texts], pa.binary())


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _absent(text: str | None) -> list[str] | None:
    names = json.loads(text or "null")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise TypeError("no list of texts")
    return names


_OWN_FIELDS: Mapping[str, Callable[[Any], object]] = {
    OPERATION: Operation,
    COMMIT_TIME: datetime.fromisoformat,
    TRANSACTION: lambda text: pa.scalar(_number(text), pa.int64()),
    ABSENT: _absent,
    COLUMN_NUMBERS: lambda text: [int(number) for number in json.loads(text or "{}").values()],
}
"""How `events_of` and `numbers_in` read the pipeline's own fields of a payload."""
