"""A rewind goes back as far as the table keeps the files of its older versions."""

from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.fence import commit_info, fence_action
from cdc_pipeline.lake.new_table import create_plain_table
from cdc_pipeline.lake.rewind import rewind
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from tests.support.lake import NOW, table_of

PROPERTY = "delta.deletedFileRetentionDuration"


@pytest.mark.parametrize(
    ("kept", "days", "expected"),
    [
        (None, 6, ""),
        (None, 8, "less than 7 days"),
        ("interval 1 days", 2, "less than 1 day"),
        ("interval 2 weeks", 8, ""),
        ("as long as it takes", 1, "less than 0:00:00 ago"),
    ],
)
def test_a_rewind_goes_back_as_far_as_files_are(tmp_path: Path, kept: str | None, days: int, expected: str) -> None:
    table = table_of()
    log = DeltaLog(LocalObjectStore(tmp_path), lake_key(table.name))
    assert create_plain_table(log, table, lambda: NOW)
    metadata = log.metadata(0)
    if kept is not None:
        metadata = metadata | {"configuration": {**metadata["configuration"], PROPERTY: kept}}
    for number in (1, 2):
        info = commit_info(operation="CDC FENCE", user_metadata="{}", read_version=number - 1, now=NOW)
        log.append(number, [info, fence_action(table.app_id, number, NOW), {"metaData": metadata}])
    later = NOW + timedelta(days=days)
    if not expected:
        assert rewind(log, table, 1, lambda: later, no_step).number == 1
        return
    with pytest.raises(LakeError, match=expected):
        rewind(log, table, 1, lambda: later, no_step)
    assert log.latest_version() == 2
