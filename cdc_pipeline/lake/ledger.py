"""Reads a lake table's history from its own log: publications, claims, and what was published."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any
from uuid import UUID

import msgspec

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.delta_log import Commit, DeltaLog
from cdc_pipeline.lake.fence import REWOUND_FROM, recorded_slices
from cdc_pipeline.lake.ledger_values import AppliedClaim, LakeLedger, PublishedCommit, PublishedTable
from cdc_pipeline.lake.protocol import NOTHING_APPLIED, app_id_of
from cdc_pipeline.record import TableSchema

PREFIX = "cdc."
PUBLISHED = "published"
_FIELDS = tuple(field.name for field in fields(PublishedTable))
_JSON = ("stream", "settings", "schema", "description")


def read_ledger(log: DeltaLog, table_uuid: UUID | None, *, after: int | None = None) -> LakeLedger | None:
    """Returns the commits that moved the fence beyond `after`, as far as the log still reaches.

    None if there is no table. A table to which nothing was published does not record its uuid; then `table_uuid` is
    used. If that is None too, the result has no steps.
    """
    latest = log.latest_version()
    if latest is None:
        return None
    published = published_table(log.metadata(latest).get("configuration") or {}, log.folder)
    uuid = published.table_uuid if published is not None else table_uuid
    if uuid is None:
        return LakeLedger(fence_number=NOTHING_APPLIED, lake_version=latest, steps=(), published=None, is_whole=True)
    app_id, steps = app_id_of(str(uuid)), dict[str, AppliedClaim | PublishedCommit]()
    fence, highest, is_whole = None, None, True
    for commit in log.backwards(latest):
        number = commit.transaction_version(app_id)
        if number is not None:
            fence = number if fence is None else fence
            if after is not None and number <= after:
                is_whole = True
                break
            found = _step(commit, number, highest, log.folder)
            if found is not None:
                steps[found.key] = found
            if REWOUND_FROM in commit.user_metadata:
                highest = number if highest is None else min(highest, number)
        is_whole = not commit.version
    if fence is None:
        numbers = [int(txn["version"]) for txn in log.checkpointed("txn") if txn["appId"] == app_id]
        fence = max(numbers, default=NOTHING_APPLIED)
    return LakeLedger(
        fence_number=fence,
        lake_version=latest,
        steps=tuple(sorted(steps.values(), key=lambda found: found.lake_version)),
        published=published,
        is_whole=is_whole,
    )


def properties_of(table: PublishedTable) -> dict[str, str]:
    """Returns the properties for the Delta table. Delta's checkpoints keep table properties for ever."""
    values = {name: getattr(table, name) for name in _FIELDS}
    values |= {"schema": table.schema.to_json(), "cutoff_time": table.cutoff_time.isoformat()}
    return {f"{PREFIX}{name}": json.dumps(value) if name in _JSON else str(value) for name, value in values.items()}


def keeps_deleted(log: DeltaLog) -> bool:
    """Returns whether the table as it is shown keeps deleted rows. Another setting may be registered by now."""
    latest = log.latest_version()
    properties = {} if latest is None else log.metadata(latest).get("configuration") or {}
    settings = json.loads(properties.get(f"{PREFIX}settings", "{}"))
    return bool(settings.get("deletes") == "soft")


def published_table(properties: Mapping[str, str], folder: str) -> PublishedTable | None:
    """Returns None if nothing was published. Raises LakeError if a property is missing.

    `folder`: that of the log which has the properties.
    """

    def text(name: str) -> str:
        if f"{PREFIX}{name}" not in properties:
            raise LakeError(
                f"the log in {folder} has no table property {PREFIX}{name}",
                expected="all properties that a snapshot publishes; versions from before the first release wrote fewer",
                remedy="begin again with an empty metadata store and another lake in pipeline.yml",
            )
        return properties[f"{PREFIX}{name}"]

    if f"{PREFIX}table_uuid" not in properties:
        return None
    values: dict[str, Any] = {name: text(name) for name in _FIELDS}
    values |= {name: json.loads(values[name]) for name in _JSON}
    values["schema"] = TableSchema.from_json(values["schema"])
    return msgspec.convert(values, PublishedTable, strict=False)


def _step(commit: Commit, number: int, highest: int | None, folder: str) -> AppliedClaim | PublishedCommit | None:
    """Returns None for a commit that is neither a claim nor a publication.

    `highest`: the lowest fence number to which a later commit rewound the lake; None without a rewind.
    """
    metadata = commit.user_metadata
    if metadata.get("claim_id"):
        return AppliedClaim(
            claim_id=UUID(metadata["claim_id"]),
            first_number=int(metadata["first"]),
            last_number=int(metadata["last"]),
            slices=recorded_slices(commit),
            position=metadata.get("position") or None,
            lake_version=commit.version,
            committed_at=commit.time,
            is_rewound=highest is not None and number > highest,
        )
    if metadata.get("snapshot_id"):
        return PublishedCommit(
            snapshot_id=metadata["snapshot_id"],
            fence_number=number,
            lake_version=commit.version,
            committed_at=commit.time,
            table=published_table(metadata.get(PUBLISHED, {}), folder),
        )
    return None
