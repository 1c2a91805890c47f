"""What the local object store does on its disk."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc_pipeline.errors import ObjectStoreAway, SettingsError
from cdc_pipeline.object_store.local import LocalObjectStore

OPENED = list[str]()
"""The paths that were opened in this process while `is_listening` is set."""
is_listening = [False]
REFUSALS = list[int]()
"""The number with which this process is refused hard links, as by a file system that makes none."""


def note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "os.link" and REFUSALS:
        raise OSError(REFUSALS[0], os.strerror(REFUSALS[0]))
    if is_listening[0] and event == "open":
        OPENED.append(str(arguments[0]))


@pytest.fixture(scope="module", autouse=True)
def listener() -> None:
    """Hears what Python itself opens and links. Such a hook stays until the process ends."""
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


@pytest.fixture
def refusals() -> Iterator[list[int]]:
    yield REFUSALS
    REFUSALS.clear()


def test_a_file_system_without_hard_links_is_no_outage(tmp_path: Path, refusals: list[int]) -> None:
    objects = LocalObjectStore(tmp_path / "lake")
    for number in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
        refusals[:] = [number]
        with pytest.raises(SettingsError, match=rf"makes no hard links: {os.strerror(number)}; .*move the lake"):
            objects.put_if_absent("a/one", b"1")
    for number in (errno.EACCES, errno.ENOSPC):
        refusals[:] = [number]
        with pytest.raises(ObjectStoreAway, match="correct the folder's permissions"):
            objects.put_if_absent("a/one", b"1")
    assert list(objects.unfinished("")) == []
