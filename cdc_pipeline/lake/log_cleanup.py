"""Deletes old objects of a Delta log, as Delta itself does after a checkpoint."""

import re
from bisect import bisect_left
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.steps import OnStep, step

_VERSIONED = re.compile(r"(?:\d{20}\.)?(\d{20})\.(?:json|crc|compacted\.json|checkpoint\..+)")
"""An object of the log. The number is its version; for compacted commits the last one."""
_SWITCH, _RETENTION = "delta.enableExpiredLogCleanup", "delta.logRetentionDuration"
_LONGEST = "interval 30 days"
_AMOUNT = re.compile(r"(\d+) (week|day|hour|minute|second|millisecond|microsecond)s?")


def clean_log(
    store: ObjectStore, log: DeltaLog, latest: int, configuration: Mapping[str, str], now: datetime, on_step: OnStep
) -> int:
    """Deletes objects that only versions older than `delta.logRetentionDuration` need. Returns their number.

    Every version that was the latest at some time since then can still be read. Like Delta, this counts whole days, so
    it deletes once a day. At other times it reads a few objects, whatever the length of the log.
    """
    retention = duration_of(configuration.get(_RETENTION, _LONGEST))
    if configuration.get(_SWITCH) == "false" or retention is None:
        return 0
    cutoff = (now - retention).replace(hour=0, minute=0, second=0, microsecond=0)
    # Versions are deleted from the oldest on, so those that exist are the last ones.
    oldest = bisect_left(range(latest), 1, key=lambda version: int(log.exists(version)))
    if _time_of(log, oldest) >= cutoff:
        return 0
    young = bisect_left(range(oldest, latest + 1), cutoff, key=lambda version: _time_of(log, version))
    last_expired = oldest + young - 1
    kept_from, _ = log.checkpoint_before(last_expired)
    with step(on_step, "lake_log.clean"):
        expired = [found.key for found in store.list_prefix(log.folder) if _version_of(found.key) < kept_from]
        store.delete_all(sorted(expired, key=_version_of))
    return len(expired)


def duration_of(text: str) -> timedelta | None:
    """Returns the duration of a table property such as `interval 7 days`. None if it is written in another way."""
    words = text.strip().lower().removeprefix("interval ")
    amounts = _AMOUNT.findall(words)
    if not amounts or _AMOUNT.sub("", words).strip():
        return None
    return sum((timedelta(**{f"{unit}s": int(amount)}) for amount, unit in amounts), timedelta())


def _time_of(log: DeltaLog, version: int) -> datetime:
    """Returns the time of a commit. A commit without a time counts as young and is kept."""
    commit = log.read(version)
    return commit.time if commit is not None and "timestamp" in commit.info else datetime.max.replace(tzinfo=UTC)


def _version_of(key: str) -> float:
    found = _VERSIONED.fullmatch(key.rpartition("/")[2])
    return int(found[1]) if found else float("inf")
