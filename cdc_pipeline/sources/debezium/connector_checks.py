"""Finds settings of a Debezium connector that make values wrong, as far as its events show them."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import structlog

from cdc_pipeline.errors import SourceError
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.types import PLACEHOLDER_TEXTS

log = structlog.get_logger()

_DOUBLE_DIGITS = 17
"""The most digits that a double is written with."""
_CUT_TIMES = ("org.apache.kafka.connect.data.Time", "org.apache.kafka.connect.data.Timestamp")
"""Of milliseconds, whatever the source's column has."""
_NUMBERS = frozenset({int, Decimal})
_PRINTED = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:E[+-][0-9]+)?|Infinity")
"""Numbers as Debezium writes texts of them: no plus before them, and an exponent as Java prints it."""
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)")
_DIGITS = str.maketrans("", "", " -.0123456789")
_ENOUGH = 10
"""So many different texts in a row that look like numbers are numbers: about one of 1,700 values in bytes looks so."""


class TableWatch:
    """Looks at the events of a table for settings that only values or their schemas show, and warns once.

    `value.converter.replace.null.with.default`: where a schema has a column that may be NULL and has a default, a value
    that equals the default may stand for NULL. One NULL in such a column shows that the connector sends NULL.
    `decimal.handling.mode = double`, in events without schemas: a number where the other modes write a text. A number
    with more digits than a double has, or a whole one, shows that the number is exact (`decimal.format = NUMERIC`).
    `decimal.handling.mode = precise`, in events without schemas: base64 where `string` writes digits. Such events are
    refused. Base64 that looks like digits is what the column's last value was that does not look like both.
    `time.precision.mode = connect`, in events with schemas: the type of a time.
    """

    def __init__(self) -> None:
        self.defaults: Mapping[str, object] | None = {}
        """By column, those that may stand for NULL; None once that is known."""
        self.texts: tuple[str, ...] = ()
        """The columns whose values may be bytes."""
        self._decimals: tuple[str, ...] | None = ()
        """The columns whose values may be doubles; None once that is known."""
        self._in_bytes: dict[str, set[object]] = {}
        """By column in bytes, the texts since the last one that showed it: each looks like a number."""
        self._warned_of_times = False
        self._layout: Layout | None = None

    def look(self, event: EnvelopeEvent, layout: Layout) -> None:
        """Looks at one event. Costs next to nothing once the table has shown what is to be known.

        Raises SourceError for an event with decimals as bytes whose schema is missing.
        """
        if self._layout is not layout:
            self._layout = layout
            self._begin(layout)
        if self.defaults:
            self._look_for_null(event, layout.name)
        if "version" not in event.source:
            self.texts = ()
        else:
            if self._decimals:
                self._look_for_double(event, layout.name)
            if self.texts:
                self._look_for_bytes(event, layout)

    def may_show(self, name: str, values: Sequence[Any], kinds: Collection[type]) -> bool:
        """Returns whether one of the values of a column may show bytes or doubles. `kinds`: the types of the values."""
        if name not in self.texts:
            return False
        if name in self._in_bytes or (name in (self._decimals or ()) and not _NUMBERS.isdisjoint(kinds)):
            return True
        return str in kinds and _have_letters(values)

    def _begin(self, layout: Layout) -> None:
        self._look_for_milliseconds(layout)
        defaults = {
            name: field["default"]
            for name, field in layout.fields.items()
            if field.get("optional") is True and field.get("default") is not None and name not in layout.schema.key
        }
        if defaults and self.defaults is not None:
            self.defaults = defaults
        decimals = tuple(column.name for column in layout.schema.columns if column.type.startswith("numeric"))
        if decimals and not layout.fields and self._decimals is not None:
            self._decimals = decimals
        whole = tuple(column.name for column in layout.schema.columns if column.type == "int8")
        self.texts = () if layout.fields else (*decimals, *whole)

    def _look_for_milliseconds(self, layout: Layout) -> None:
        cut = [name for name, field in layout.fields.items() if field.get("name") in _CUT_TIMES]
        if cut and not self._warned_of_times:
            self._warned_of_times = True
            log.warning(
                "times may be cut to milliseconds",
                table=layout.name,
                column=cut[0],
                found=f"the type {layout.fields[cut[0]]['name']}",
                expected="time.precision.mode = adaptive in the connector, for a column with microseconds",
                remedy="set it and have the rows sent again, unless the source's columns have milliseconds alone",
            )

    def _look_for_null(self, event: EnvelopeEvent, table: str) -> None:
        for name, default in (self.defaults or {}).items():
            values = [image[name] for image in (event.before, event.after) if image is not None and name in image]
            if None in values:
                self.defaults = None
                return
            if default in values:
                self.defaults = None
                log.warning(
                    "NULL may arrive as the column's default",
                    table=table,
                    column=name,
                    found=f"the default {default!r} in an event, and no NULL in a column with a default",
                    expected="value.converter.replace.null.with.default = false in the connector",
                    remedy="if it was not set, set it and have the rows sent again",
                )
                return

    def _look_for_double(self, event: EnvelopeEvent, table: str) -> None:
        for name in self._decimals or ():
            value = (event.after or {}).get(name)
            if type(value) is int or (isinstance(value, Decimal) and len(value.as_tuple().digits) > _DOUBLE_DIGITS):
                self._decimals = None
                return
            if isinstance(value, Decimal):
                self._decimals = None
                log.warning(
                    "decimals may be rounded",
                    table=table,
                    column=name,
                    found="a number where the connector writes a text by default",
                    expected="decimal.handling.mode = precise or string, or decimal.format = NUMERIC beside it",
                    remedy="if the connector sends doubles, change it and have the rows sent again",
                )
                return

    def _look_for_bytes(self, event: EnvelopeEvent, layout: Layout) -> None:
        row = event.after or {**(event.key or {}), **(event.before or {})}
        if not self._in_bytes and not _have_letters(map(row.get, self.texts)):
            return
        found = [name for name in self.texts if self._is_in_bytes(name, row.get(name))]
        taken = layout.schema.key if event.operation == "d" else ()  # a keyless table's delete takes the whole row
        if any(not taken or name in taken for name in found):
            raise SourceError(
                f"decimals of {layout.name} come as bytes, without the schema that says their scale",
                expected="texts (decimal.handling.mode = string, bigint.unsigned.handling.mode = long), or schemas",
                remedy="change the connector, and have all rows of the table sent again",
            )

    def _is_in_bytes(self, name: str, value: object) -> bool:
        """Returns whether a value is base64. What looks like a number, too, is one unless the column is in bytes."""
        in_bytes = self._in_bytes
        is_number, is_base64 = _looks_like(value)
        if is_base64 and not is_number:
            in_bytes[name] = set()
        elif is_number and not is_base64:
            in_bytes.pop(name, None)
        elif is_number and name in in_bytes:
            in_bytes[name].add(value)
            if len(in_bytes[name]) == _ENOUGH:
                del in_bytes[name]
        return is_base64 and name in in_bytes


def _have_letters(values: Iterable[object]) -> bool:
    """Returns whether a text among many has more than numbers have, as nearly all base64 does. Takes little time."""
    texts = " ".join([value for value in values if isinstance(value, str)])
    return bool(texts.replace("E-", "").replace("E+", "").translate(_DIGITS))


def _looks_like(value: object) -> tuple[bool, bool]:
    """Returns whether a value looks like a number, and like base64, which has neither a point nor a minus."""
    if not isinstance(value, str):
        return type(value) in _NUMBERS, False
    if value in PLACEHOLDER_TEXTS:
        return False, False
    return _PRINTED.fullmatch(value) is not None, _BASE64.fullmatch(value) is not None
