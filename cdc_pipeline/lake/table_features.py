"""Which features of a Delta table the pipeline's own commits respect, and which only Delta's writer maintains."""

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.delta_log import Action, DeltaLog

KNOWN_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "vacuumProtocolCheck",
    }
)
"""Table features that the pipeline's own commits respect, as long as the switches of these features are off.

A commit that only moves the fence respects them in any case.
"""
_NEVER_DROPPED = "clustering"
"""Delta 4.4 has no DROP FEATURE for it."""


def unknown_features(protocol: Action) -> list[str]:
    """Returns the features that a user has switched on and that the pipeline does not maintain."""
    return sorted({*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())} - KNOWN_FEATURES)


def has_unknown_features(log: DeltaLog, version: int) -> bool:
    """Whether a commit of the pipeline's own after this version would break a feature of the table."""
    return bool(unknown_features(_protocol(log, version)))


def check_features(log: DeltaLog, version: int, doing: str) -> None:
    """Raises LakeError if a commit of the pipeline's own after this version would break a feature of the table."""
    found = unknown_features(_protocol(log, version))
    if found:
        raise LakeError(
            f"the table in {log.table_key} has the features {', '.join(found)}",
            expected=f"none that only Delta's writer maintains: {doing} is a commit of the pipeline's own",
            remedy="move the table's folder away and run cdc snapshot on the table"
            if _NEVER_DROPPED in found
            else "switch them off and run ALTER TABLE ... DROP FEATURE for each, which may add checkpointProtection;"
            " a day later, run ALTER TABLE ... DROP FEATURE checkpointProtection TRUNCATE HISTORY; or move the table's"
            " folder away and run cdc snapshot on the table",
        )


def check_features_then(log: DeltaLog, version: int) -> None:
    """Raises LakeError if going back to this version would bring back a feature that the pipeline does not maintain."""
    found = unknown_features(_protocol(log, version))
    if found:
        raise LakeError(
            f"version {version} of the table in {log.table_key} has the features {', '.join(found)}",
            expected="none that only Delta's writer maintains: a rewind would bring them back",
            remedy="choose a position after they were dropped, or take a new snapshot",
        )


def _protocol(log: DeltaLog, version: int) -> Action:
    return log.newest("protocol", version, summed="protocol")
