"""What a lake's table says about its publication."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.ledger import properties_of, published_table
from cdc_pipeline.lake.ledger_values import PublishedTable
from cdc_pipeline.record import Column, TableSchema
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


def test_every_field_is_written_as_lakes_have_it_and_read_again() -> None:
    columns = (Column(name="id", type="int8", number=1), Column(name="näme", type="text", number=2, missing="x"))
    table = replace(
        PUBLISHED,
        stream={"name": "shop", "slot": None},
        settings={"id": ["id"], "history": True},
        schema=TableSchema(columns=columns, key=("id",), generation=3),
        cutoff_time=datetime(2024, 1, 2, 3, 4, 5, 60, tzinfo=UTC),
        rows=12,
        files=3,
        bytes=45_000_000_000,
        kept=6,
        description=({"oid": 1}, {"oid": 2}),
    )
    properties = {
        "cdc.table_uuid": "00000000-0000-0000-0000-000000000007",
        "cdc.source_oid": "16400",
        "cdc.stream": '{"name": "shop", "slot": null}',
        "cdc.settings": '{"id": ["id"], "history": true}',
        "cdc.schema": r'{"columns": [["id", "int8", 1, null], ["n\u00e4me", "text", 2, "x"]], "key": ["id"],'
        ' "generation": 3}',
        "cdc.snapshot_id": "s1",
        "cdc.fence_number": "1",
        "cdc.cutoff_offset": "00",
        "cdc.cutoff_version": "0000000000000064-00000001",
        "cdc.cutoff_time": "2024-01-02T03:04:05.000060+00:00",
        "cdc.rows": "12",
        "cdc.files": "3",
        "cdc.bytes": "45000000000",
        "cdc.kept": "6",
        "cdc.description": '[{"oid": 1}, {"oid": 2}]',
    }
    assert list(properties_of(table).items()) == list(properties.items())
    assert published_table(properties, FOLDER) == table


def test_a_lake_from_before_the_first_release_is_refused_by_the_property_that_it_lacks() -> None:
    properties = properties_of(PUBLISHED)
    assert published_table(properties, FOLDER) == PUBLISHED
    del properties["cdc.description"]
    found = rf"the log in {FOLDER} has no table property cdc\.description.*another lake in pipeline\.yml"
    with pytest.raises(LakeError, match=found):
        published_table(properties, FOLDER)
