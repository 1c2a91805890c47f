"""One server for all workers of a test run: who needs it first starts it, and ends it when nobody needs it any more."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest


@contextmanager
def shared(name: str, start: Callable[[], AbstractContextManager[str]], run: Path) -> Iterator[str]:
    """The URL that `start` gives to its first caller. `run`: the folder of the whole run, as of `folder_of_the_run`.

    Who started it leaves last: all users share the lock on a file, which one can have alone when the others are gone.
    """
    url = run / f"{name}.url"
    with (run / f"{name}.users").open("w") as users, ExitStack() as mine:
        with (run / f"{name}.first").open("w") as first:
            fcntl.flock(first, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            if not url.exists():
                found = mine.enter_context(start())
                mine.callback(url.unlink)
                mine.callback(fcntl.flock, users, fcntl.LOCK_EX)
                url.write_text(found)
        yield url.read_text()


def folder_of_the_run(factory: pytest.TempPathFactory) -> Path:
    """Each worker of a run has a folder of its own in it."""
    folder = factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
