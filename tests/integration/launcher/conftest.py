"""A home for a stack that the server's account can enter, unlike pytest's own temporary folders."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cdc-test-home-"))
    folder.chmod(0o711)
    yield folder / "home"
    shutil.rmtree(folder)
