"""What a lake's table says about its publication."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.ledger import properties_of, published_table
from cdc_pipeline.lake.ledger_values import PublishedTable
from tests.support.lake import table_of, version

FOLDER = "datalake/shop/public/people/_delta_log"
PUBLISHED = PublishedTable(
    table_uuid=UUID(int=7),
    source_oid=16_400,
    stream={"name": "shop"},
    settings={"id": ["id"]},
    schema=table_of().schema,
    snapshot_id="s1",
    fence_number=1,
    cutoff_offset="00",
    cutoff_version=version(100),
    cutoff_time=datetime(2024, 1, 1, tzinfo=UTC),
    rows=1,
    files=1,
    bytes=1,
)


def test_a_lake_from_before_the_first_release_is_refused_by_the_property_that_it_lacks() -> None:
    properties = properties_of(PUBLISHED)
    assert published_table(properties, FOLDER) == PUBLISHED
    del properties["cdc.description"]
    found = rf"the log in {FOLDER} has no table property cdc\.description.*another lake in pipeline\.yml"
    with pytest.raises(LakeError, match=found):
        published_table(properties, FOLDER)
