"""Debezium's dates, times and intervals -> the text that PostgreSQL prints for the same value.

Google Datastream's Avro has records in their place: of date and time, of time and offset, of months, hours and micros.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from cdc_pipeline.types.unfit import Unfit

_DATE = r"(?!0000)(?P<date>\d{4}-\d{2}-\d{2})"
_CLOCK = r"(?P<minutes>\d{2}:\d{2})(?::(?P<seconds>\d{2})(?:\.(?P<fraction>\d+))?)?"
_ZONE = r"(?P<zone>Z|[+-]\d{2}(?::?\d{2})?(?::?\d{2})?)"
_ISO_DATE = re.compile(rf"{_DATE}Z?")
_ISO_TIME = re.compile(rf"{_CLOCK}Z?")
_ISO_ZONED_TIME = re.compile(rf"{_CLOCK}{_ZONE}")
_ISO_TIMESTAMP = re.compile(rf"{_DATE}[T ]{_CLOCK}Z?")
_ISO_ZONED_TIMESTAMP = re.compile(rf"{_DATE}[T ]{_CLOCK}{_ZONE}")
_ISO_INTERVAL = re.compile(
    r"P(?:(?P<years>-?\d{1,10})Y)?(?:(?P<months>-?\d{1,10})M)?(?:(?P<days>-?\d{1,10})D)?"
    r"(?:T(?:(?P<hours>-?\d{1,19})H)?(?:(?P<minutes>-?\d{1,19})M)?(?:(?P<seconds>-?\d{1,19}(?:\.\d{1,18})?)S)?)?"
)
_ZERO_OFFSET = ":00"
_NANOSECONDS = 1_000
_MONTHS_PER_YEAR = 12
_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = date.min.toordinal(), date.max.toordinal()
_MICROSECONDS_DIGITS = 6


def date_text(value: object) -> str:
    """`value`: days since 1970, or an ISO date."""
    if isinstance(value, str):
        return _matched(_ISO_DATE, value)["date"]
    ordinal = as_integer(value) + date(1970, 1, 1).toordinal()
    if not _FIRST_DAY <= ordinal <= _LAST_DAY:
        raise Unfit
    return date.fromordinal(ordinal).isoformat()


def time_text(tick: int) -> Callable[[object], str]:
    """Returns a function for ticks of `tick` nanoseconds since midnight, or for an ISO time."""

    def text(value: object) -> str:
        return _clock(_matched(_ISO_TIME, value)) if isinstance(value, str) else _time_of_day(microseconds(value, tick))

    return text


def zoned_time_text(value: object) -> str:
    if not isinstance(value, str):
        raise Unfit
    found = _matched(_ISO_ZONED_TIME, value)
    return _clock(found) + _zone(found["zone"])


def timestamp_text(tick: int) -> Callable[[object], str]:
    """Returns a function for ticks of `tick` nanoseconds since 1970, or for an ISO timestamp with no offset or Z."""

    def text(value: object) -> str:
        if isinstance(value, dict):
            day, clock = _parts(value, "date", "time")
            return f"{date_text(day)} {time_text(_NANOSECONDS)(clock)}"
        if not isinstance(value, str):
            return _stamp(microseconds(value, tick))
        found = _matched(_ISO_TIMESTAMP, value)
        return f"{found['date']} {_clock(found)}"

    return text


def zoned_timestamp_text(tick: int) -> Callable[[object], str]:
    """Returns a function for ticks of `tick` nanoseconds since 1970 UTC, or for an ISO timestamp with an offset."""

    def text(value: object) -> str:
        if isinstance(value, dict):
            moment, _ = _parts(value, "timestamp", "offset")
            return zoned_timestamp_text(_NANOSECONDS)(moment)
        if not isinstance(value, str):
            return f"{_stamp(microseconds(value, tick))}+00"
        found = _matched(_ISO_ZONED_TIMESTAMP, value)
        return f"{found['date']} {_clock(found)}{_zone(found['zone'])}"

    return text


def interval_text(value: object) -> str:
    """`value`: `P1Y2M3DT4H5M6.78S`. A number of microseconds is unfit: Debezium guesses the length of a month."""
    if isinstance(value, dict):
        value = _iso_interval(*map(as_integer, _parts(value, "months", "hours", "micros")))
    if not isinstance(value, str):
        raise Unfit
    if not value.startswith("P"):
        return value
    found = _matched(_ISO_INTERVAL, value)
    shown: list[str] = []
    before = False
    for name, unit in (("years", "year"), ("months", "mon"), ("days", "day")):
        number = int(found[name] or 0)
        if number:
            shown.append(f"{'+' if before and number > 0 else ''}{number} {unit}{'' if number == 1 else 's'}")
            before = number < 0
    hours, minutes, seconds = (Decimal(found[name] or 0) for name in ("hours", "minutes", "seconds"))
    clock = (hours * 60 + minutes) * 60 + seconds
    if clock or not shown:
        sign = "-" if clock < 0 else "+" if before else ""
        shown.append(sign + _time_of_day(_exact(clock.copy_abs() * 1_000_000), last=None))
    return " ".join(shown)


def _iso_interval(months: int, hours: int, micros: int) -> str:
    years, rest = (part if months > 0 else -part for part in divmod(abs(months), _MONTHS_PER_YEAR))
    return f"P{years}Y{rest}MT{hours}H{Decimal(micros).scaleb(-_MICROSECONDS_DIGITS):f}S"


def _parts(record: Mapping[str, object], *names: str) -> list[object]:
    if record.keys() != {*names}:
        raise Unfit
    return [record[name] for name in names]


def microseconds(value: object, tick: int) -> int:
    """Converts ticks of `tick` nanoseconds. Raises Unfit for a fraction of a microsecond."""
    found, rest = divmod(as_integer(value) * tick, _NANOSECONDS)
    if rest:
        raise Unfit
    return found


def with_nanoseconds(render: Callable[[object], str], tick: int) -> Callable[[object], str]:
    """Returns a function for a column of texts, which hold the fractions of a microsecond that `render` refuses."""

    def text(value: object) -> str:
        if tick != 1 or type(value) is not int or not value % _NANOSECONDS:
            return render(value)
        rest = value % _NANOSECONDS
        render(value - rest + _NANOSECONDS)  # refuses what is less than a microsecond behind the last time
        shown, _, fraction = render(value - rest).partition(".")
        return f"{shown}.{fraction.ljust(_MICROSECONDS_DIGITS, '0')}{rest:03d}".rstrip("0")

    return text


def as_integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unfit
    return value


def _exact(number: Decimal) -> int:
    if number != int(number):
        raise Unfit
    return int(number)


def _stamp(since_epoch: int) -> str:
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=since_epoch)
    except OverflowError as error:
        raise Unfit from error
    return moment.replace(tzinfo=None).isoformat(" ")


def _time_of_day(since_midnight: int, *, last: int | None = _DAY) -> str:
    if since_midnight < 0 or (last is not None and since_midnight > last):
        raise Unfit
    seconds, fraction = divmod(since_midnight, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}" + _fraction(f"{fraction:06d}")


def _clock(found: re.Match[str]) -> str:
    return f"{found['minutes']}:{found['seconds'] or '00'}{_fraction(found['fraction'] or '')}"


def _fraction(digits: str) -> str:
    digits = digits.rstrip("0")
    if len(digits) > _MICROSECONDS_DIGITS:
        raise Unfit
    return f".{digits}" if digits else ""


def _zone(zone: str) -> str:
    """The offset as PostgreSQL prints it: minutes and seconds only if they are not zero."""
    if zone == "Z":
        return "+00"
    digits = zone[1:].replace(":", "")
    parts = [digits[place : place + 2] for place in range(0, len(digits), 2)]
    return zone[0] + ":".join(parts).removesuffix(_ZERO_OFFSET).removesuffix(_ZERO_OFFSET)


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise Unfit
    return found
