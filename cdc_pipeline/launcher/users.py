"""Counts the commands that use embedded servers which commands started: the last one ends the servers.

Each command holds a shared lock on one file meanwhile; the kernel releases it however the command ends. A watcher waits
for the exclusive lock. It ends the servers of commands that were killed or that left at the same moment.

    python -m cdc_pipeline.launcher.users HOME
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cdc_pipeline.errors import LeaseBusy
from cdc_pipeline.launcher.launch import start
from cdc_pipeline.launcher.marked import end_marked, marked, marks
from cdc_pipeline.launcher.processes import POSTGRES
from cdc_pipeline.settings.installation.state import Installation, open_installation

USERS = "users.lock"
WATCHER = "watcher"


def parts_mark(installation: Installation) -> str:
    """Mark of servers that commands started. It differs from the mark of `cdc up`, so `down` does not end them."""
    return f"{installation.identity}/parts"


def source_mark(installation: Installation) -> str:
    """The mark of servers that the demo reads from. They start before the stack, and `down` ends them after it."""
    return f"{installation.identity}/source"


@contextmanager
def nobody_uses(installation: Installation) -> Iterator[None]:
    """Ends the commands' servers and keeps other commands from starting any inside the block.

    Raises LeaseBusy while a command uses them.
    """
    with (installation.home / USERS).open("a+") as file:
        if not _takes(file, fcntl.LOCK_EX):
            raise LeaseBusy(
                "another cdc command uses the embedded servers",
                remedy="end it, or wait for its end, and run `cdc up` again",
            )
        _end_parts(installation)
        yield


@contextmanager
def one_user(installation: Installation) -> Iterator[IO[str]]:
    """Registers this command as a user of the embedded servers.

    The last user to leave ends the servers that commands started.
    """
    with (installation.home / USERS).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            yield file
        finally:
            if not file.closed and _takes(file, fcntl.LOCK_EX):
                _end_parts(installation)


def watch(installation: Installation) -> "subprocess.Popen[bytes] | None":
    """Starts a watcher that ends the servers if their last user is killed. None if there is a watcher already.

    The caller must hold the shared lock.
    """
    if WATCHER in marked(parts_mark(installation)).values():
        return None
    with installation.log(WATCHER).open("ab") as output:
        return start(
            [sys.executable, "-m", "cdc_pipeline.launcher.users", str(installation.home)],
            environment={**os.environ, **marks(parts_mark(installation), WATCHER)},
            folder=installation.home,
            output=output,
        )


def _takes(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _end_parts(installation: Installation) -> None:
    end_marked(parts_mark(installation), last=POSTGRES)


def main() -> None:
    installation = open_installation(Path(sys.argv[1]))
    with (installation.home / USERS).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _end_parts(installation)


if __name__ == "__main__":
    main()
