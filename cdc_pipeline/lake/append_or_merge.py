"""Which claims are applied by append and which by MERGE: the one place where that is chosen."""

import json
from typing import Literal

from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable
from cdc_pipeline.lake.reshaping import configuration_of
from cdc_pipeline.lake.table_ddl import VECTORS
from cdc_pipeline.lake.table_state import LakeTableState

Upsert = Literal["append", "merge"]
_MOST_FILES = 20_000
"""Spark looks at each file that it reads as plain Parquet by its name; Delta's reader does not."""
_FEATURES = frozenset(
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
"""Features of a table that a commit of the pipeline follows, where nothing below is switched on."""
_SWITCHES = ("delta.appendOnly", "delta.enableChangeDataFeed")
_CONSTRAINT = "delta.constraints."
_RULES = frozenset({"delta.generationExpression", "delta.invariants", "delta.identity.start"})
_LISTS_FEATURES = 7


def is_appended(table: LakeTable, work: ClaimWork, state: LakeTableState) -> bool:
    """MERGE stays for truncates, which touch every row, and for what only Delta's own writer keeps: files without
    vectors, a change data feed, constraints and features that were switched on by somebody else.
    """
    return (
        not work.truncates
        and table.deletion_vectors
        and configuration_of(state.metadata).get(VECTORS) == "true"
        and has_known_features(state.metadata, state.protocol)
        and len(state.files) <= _MOST_FILES
        and not any(path.startswith("/") or ":/" in path for path in state.files)
    )


def has_known_features(metadata: Action, protocol: Action) -> bool:
    """Whether nothing is switched on that this writer would have to keep and does not."""
    features = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
    configuration = configuration_of(metadata)
    fields = json.loads(metadata["schemaString"])["fields"]
    return (
        protocol.get("minWriterVersion") == _LISTS_FEATURES
        and features <= _FEATURES
        and not any(configuration.get(switch) == "true" for switch in _SWITCHES)
        and not any(name.startswith(_CONSTRAINT) for name in configuration)
        and all(field["nullable"] and not _RULES & field["metadata"].keys() for field in fields)
    )
