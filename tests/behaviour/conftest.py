"""Every implementation of a protocol, for the suites that hold all of them to the same promises."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_pipeline.lake.protocol import Lake
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from tests.support.lake import Feed, table_of
from tests.support.lakes import Arm, memory_arm, merge_arm, spark_arm
from tests.support.s3 import s3_objects


@pytest.fixture(params=["local", "s3"])
def objects(tmp_path: Path, s3_prefix: str, request: pytest.FixtureRequest) -> ObjectStore:
    """An empty object store."""
    if request.param == "local":
        return LocalObjectStore(tmp_path / "a lake")
    return s3_objects(request.getfixturevalue("s3_endpoint"), s3_prefix)


@pytest.fixture(
    params=[
        pytest.param(memory_arm, id="memory"),
        pytest.param(spark_arm, id="spark"),
        pytest.param(merge_arm, id="merge", marks=pytest.mark.nightly),
    ]
)
def arm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arm]:
    with request.param(LocalObjectStore(tmp_path / "bucket"), request) as arm:
        yield arm


@pytest.fixture
def lake(arm: Arm) -> Lake:
    return arm.make(no_step)


@pytest.fixture
def feed(arm: Arm, lake: Lake) -> Feed:
    table = table_of()
    lake.create_table(table)
    return Feed(store=arm.store, table=table)
