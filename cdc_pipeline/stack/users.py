"""Who uses the embedded servers that one of several commands started: the starter stays until the last user left.

Record locks: they belong to a process, so that one inside another in the same process never waits for itself.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cdc_pipeline.errors import LeaseBusy
from cdc_pipeline.stack.marked import marked
from cdc_pipeline.stack.state import Installation

USERS = "users.lock"


def parts_mark(installation: Installation) -> str:
    """Not the stack's mark: `down` leaves what belongs to a command alone."""
    return f"{installation.identity}/parts"


@contextmanager
def nobody_uses(installation: Installation) -> Iterator[None]:
    """Raises LeaseBusy while a command uses servers that do not belong to the stack; keeps new ones out meanwhile."""
    busy = LeaseBusy(
        "another cdc command is at work with the embedded servers",
        remedy="end it, or wait for its end, and run `cdc up` again",
    )
    with (installation.home / USERS).open("a+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise busy from error
        if marked(parts_mark(installation)):
            raise busy
        yield


@contextmanager
def one_user(home: Path) -> Iterator[IO[str]]:
    with (home / USERS).open("a+") as file:
        fcntl.lockf(file, fcntl.LOCK_SH)
        yield file


def wait_for_the_others(file: IO[str]) -> None:
    fcntl.lockf(file, fcntl.LOCK_EX)
