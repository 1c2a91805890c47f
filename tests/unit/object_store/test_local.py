"""What the local object store does on its disk."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc_pipeline.object_store.local import LocalObjectStore

OPENED = list[str]()
"""The paths that were opened in this process while `is_listening` is set."""
is_listening = [False]


def note(event: str, arguments: tuple[object, ...]) -> None:
    if is_listening[0] and event == "open":
        OPENED.append(str(arguments[0]))


@pytest.fixture(scope="module", autouse=True)
def listener() -> None:
    """Hears what Python itself opens. Such a hook stays until the process ends."""
    sys.addaudithook(note)


@pytest.fixture
def opened() -> Iterator[list[str]]:
    OPENED.clear()
    is_listening[0] = True
    yield OPENED
    is_listening[0] = False


@pytest.mark.parametrize("put", [LocalObjectStore.put_if_absent, LocalObjectStore.overwrite])
def test_new_folders_are_made_durable_with_their_object(
    put: Callable[[LocalObjectStore, str, bytes], None], tmp_path: Path, opened: list[str]
) -> None:
    objects = LocalObjectStore(tmp_path / "lake")
    put(objects, "a/b/one", b"1")
    root = tmp_path / "lake"
    assert {str(tmp_path), str(root), str(root / "a"), str(root / "a" / "b")} <= set(opened)
    opened.clear()
    put(objects, "a/b/two", b"2")
    assert str(root / "a") not in opened
