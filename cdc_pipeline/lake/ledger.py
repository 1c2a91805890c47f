"""Reads a lake table's history from its own log: publications, claims, and what was published."""

import json
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

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
    published = published_table(log.metadata(latest).get("configuration") or {})
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
            found = _step(commit, number, highest)
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


def published_table(properties: Mapping[str, str]) -> PublishedTable | None:
    """Returns None if nothing was published."""
    texts = {name.removeprefix(PREFIX): text for name, text in properties.items() if name.startswith(PREFIX)}
    if "table_uuid" not in texts:
        return None
    return PublishedTable(
        table_uuid=UUID(texts["table_uuid"]),
        source_oid=int(texts["source_oid"]),
        stream=json.loads(texts["stream"]),
        settings=json.loads(texts["settings"]),
        schema=TableSchema.from_json(json.loads(texts["schema"])),
        snapshot_id=texts["snapshot_id"],
        fence_number=int(texts["fence_number"]),
        cutoff_offset=texts["cutoff_offset"],
        cutoff_version=texts["cutoff_version"],
        cutoff_time=datetime.fromisoformat(texts["cutoff_time"]),
        rows=int(texts["rows"]),
        files=int(texts["files"]),
        bytes=int(texts["bytes"]),
        kept=int(texts["kept"]),
        description=tuple(json.loads(texts["description"])),
    )


def _step(commit: Commit, number: int, highest: int | None) -> AppliedClaim | PublishedCommit | None:
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
            table=published_table(metadata.get(PUBLISHED, {})),
        )
    return None
