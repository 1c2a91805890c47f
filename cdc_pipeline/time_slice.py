"""The time; labels of time slices, and names of slice files: built and parsed."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STAMP = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(
    r"(?P<start>\d{8}T\d{6}Z)-(?P<end>\d{8}T\d{6}Z)"
    r"\.(?P<first>[0-9a-f]{16})-(?P<next>[0-9a-f]{16})\.(?P<digest>[0-9a-f]{16})\.parquet"
)


def utc_now() -> datetime:
    return datetime.now(tz=UTC)


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Label:
    """The half-open interval [start, end) of commit time that a slice is named after; aware UTC, whole seconds."""

    start: datetime
    end: datetime

    def __str__(self) -> str:
        return f"{self.start:{_STAMP}}-{self.end:{_STAMP}}"


def label_of(commit_time: datetime, slice_length: timedelta) -> Label:
    """Returns the interval that contains `commit_time`, on a grid of `slice_length` from 1970-01-01T00:00:00Z."""
    start = EPOCH + (commit_time - EPOCH) // slice_length * slice_length
    return Label(start=start, end=start + slice_length)


def interval_from(last: Label, slice_length: timedelta) -> int:
    """Returns the number of the first interval whose label is not before `last`, which may have another length."""
    label = label_of(last.start, slice_length)
    number = (label.start - EPOCH) // slice_length
    return number + 1 if label < last else number


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFileName:
    """`<start>-<end>.<first offset>-<next offset>.<first 16 digits of the SHA-256>.parquet`.

    The offsets are a half-open range, encoded by `record.encode_position`. Times are in the basic ISO form, because
    Spark cannot read a file with ':' in its name.
    """

    label: Label
    start_offset: str
    end_offset: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.label}.{self.start_offset}-{self.end_offset}.{self.sha256[:16]}.parquet"

    @classmethod
    def parse(cls, name: str) -> "SliceFileName":
        """Parses a name; `sha256` then holds only its first 16 digits. Raises ValueError for any other name."""
        match = _NAME.fullmatch(name)
        if match is None:
            message = f"{name!r} is not the name of a slice file"
            raise ValueError(message)
        label = Label(start=_stamp(match["start"]), end=_stamp(match["end"]))
        return cls(label=label, start_offset=match["first"], end_offset=match["next"], sha256=match["digest"])


def _stamp(text: str) -> datetime:
    return datetime.strptime(text, _STAMP).replace(tzinfo=UTC)
