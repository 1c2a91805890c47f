"""Reads a lake table's history from its own log: publications, claims, and what was published."""

import json
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.delta_log import Commit, DeltaLog
from cdc_pipeline.lake.fence import REWOUND_FROM, recorded_slices
from cdc_pipeline.lake.ledger_values import AppliedClaim, LakeLedger, PublishedCommit, PublishedTable
from cdc_pipeline.lake.protocol import NOTHING_APPLIED, app_id_of
from cdc_pipeline.record import TableSchema

PREFIX = "cdc."
PUBLISHED = "published"


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
    texts = {
        "table_uuid": str(table.table_uuid),
        "source_oid": str(table.source_oid),
        "stream": json.dumps(table.stream),
        "settings": json.dumps(table.settings),
        "schema": json.dumps(table.schema.to_json()),
        "snapshot_id": table.snapshot_id,
        "fence_number": str(table.fence_number),
        "cutoff_offset": table.cutoff_offset,
        "cutoff_version": table.cutoff_version,
        "cutoff_time": table.cutoff_time.isoformat(),
        "rows": str(table.rows),
        "files": str(table.files),
        "bytes": str(table.bytes),
        "kept": str(table.kept),
        "description": json.dumps(table.description),
    }
    return {f"{PREFIX}{name}": text for name, text in texts.items()}


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
    return PublishedTable(
        table_uuid=UUID(text("table_uuid")),
        source_oid=int(text("source_oid")),
        stream=json.loads(text("stream")),
        settings=json.loads(text("settings")),
        schema=TableSchema.from_json(json.loads(text("schema"))),
        snapshot_id=text("snapshot_id"),
        fence_number=int(text("fence_number")),
        cutoff_offset=text("cutoff_offset"),
        cutoff_version=text("cutoff_version"),
        cutoff_time=datetime.fromisoformat(text("cutoff_time")),
        rows=int(text("rows")),
        files=int(text("files")),
        bytes=int(text("bytes")),
        kept=int(text("kept")),
        description=tuple(json.loads(text("description"))),
    )


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
