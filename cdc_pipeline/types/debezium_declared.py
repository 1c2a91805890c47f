"""Debezium's value of a field whose own type is of another kind than the type that its column is declared as."""

from cdc_pipeline.types.debezium_text import OWN_TYPES, Field, Render, renderer
from cdc_pipeline.types.unfit import Unfit

_YEAR = "io.debezium.time.Year"
_NUMBERS = frozenset({"int2", "int4", "int8", "oid", "float4", "float8"})
_MIDNIGHT = {"timestamp": " 00:00:00", "timestamptz": " 00:00:00+00"}
_OTHERS = frozenset(
    {"boolean", "bit", "varbit", "date", "time", "timetz", "timestamp", "timestamptz", "interval"}
    | {"hstore", "point", "uuid"}
)
"""What is of one of these types is no number, time or date of another type."""


def declared_renderer(type_name: str, field: Field | None) -> Render:
    """Returns `renderer`, or a function of the field's own value where the number that encodes it would be another one.

    A date is its midnight, a decimal the number that it is. Other kinds do not fit each other, so the function raises
    Unfit. But a date or time that is declared as a number is the number that encodes it.
    """
    name = None if field is None else field.get("name")
    own = "int4" if name == _YEAR else OWN_TYPES.get(str(name))
    declared = type_name.partition("(")[0].rpartition(".")[2]
    if own == "numeric" and declared in _NUMBERS:
        of_field, of_text = renderer(own, field), renderer(type_name, None)
        return lambda value: of_text(of_field(value))
    if own == "date" and declared in _MIDNIGHT:
        of_date = renderer(own, field)
        return lambda value: of_date(value) + _MIDNIGHT[declared]
    if own is None or declared not in _OTHERS or declared == own or (own, declared) == ("timestamp", "timestamptz"):
        return renderer(type_name, field)
    return _nothing_fits


def _nothing_fits(_value: object) -> str:
    raise Unfit
