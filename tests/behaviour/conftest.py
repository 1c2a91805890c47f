"""Every implementation of a protocol, for the suites that hold all of them to the same promises."""

from pathlib import Path

import pytest

from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.object_store.local import LocalObjectStore


@pytest.fixture(params=["local"])
def objects(tmp_path: Path) -> ObjectStore:
    """An empty object store."""
    return LocalObjectStore(tmp_path / "a lake")
