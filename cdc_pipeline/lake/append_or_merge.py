"""Decides which claims are applied by append and which by MERGE."""

import json
from typing import Literal

from cdc_pipeline.lake.claim_changes import safe_ranges
from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.lake.lake_files import LakeFiles
from cdc_pipeline.lake.protocol import ClaimWork
from cdc_pipeline.lake.reshaping import configuration_of
from cdc_pipeline.lake.table_ddl import VECTORS
from cdc_pipeline.lake.table_features import unknown_features

Upsert = Literal["append", "merge"]
_MOST_FILES = 20_000
"""Claims that read more files than this are merged.

Spark looks up each plain Parquet file before it reads it; Delta's reader does not.
"""
_SWITCHES = ("delta.appendOnly", "delta.enableChangeDataFeed")
_CONSTRAINT = "delta.constraints."
_RULES = frozenset({"delta.generationExpression", "delta.invariants", "delta.identity.start"})
_LISTS_FEATURES = 7


def is_appended(work: ClaimWork, files: LakeFiles) -> bool:
    """Whether the claim is applied by append.

    MERGE remains for truncates, which touch every row, for claims that read too many files, for tables with files
    outside their folder, and for what only Delta's own writer maintains: tables without deletion vectors, with a change
    data feed, with constraints, or with features that the pipeline does not switch on.
    """
    table, state = files.table, files.state
    return (
        not work.truncates
        and table.deletion_vectors
        and configuration_of(state.metadata).get(VECTORS) == "true"
        and has_known_features(state.metadata, state.protocol)
        and not state.files.has_files_elsewhere
        and (len(state.files) <= _MOST_FILES or len(files.candidates(safe_ranges(table, work))) <= _MOST_FILES)
    )


def has_known_features(metadata: Action, protocol: Action) -> bool:
    """Whether the table uses only features that this writer maintains."""
    configuration = configuration_of(metadata)
    fields = json.loads(metadata["schemaString"])["fields"]
    return (
        protocol.get("minWriterVersion") == _LISTS_FEATURES
        and not unknown_features(protocol)
        and not any(configuration.get(switch, "").lower() == "true" for switch in _SWITCHES)
        and not any(name.startswith(_CONSTRAINT) for name in configuration)
        and all(field["nullable"] and not _RULES & field["metadata"].keys() for field in fields)
    )
