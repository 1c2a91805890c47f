"""Servers that the demo reads from, beside the stack's own: each runs until `cdc down`, like the stack."""

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from threading import Event

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.launch import log_end, start
from cdc_pipeline.launcher.marked import marked, marks
from cdc_pipeline.launcher.users import source_mark
from cdc_pipeline.settings.installation.state import Installation

TIMEOUT = timedelta(minutes=5)
_POLL_SECONDS = 0.2


def ensure_server(
    installation: Installation, *, name: str, command: Sequence[str], folder: Path, answers: Callable[[], bool]
) -> None:
    """Starts the server unless it runs, and returns when it answers. Raises SetupError if it ends before that.

    `name`: of the process and its log. `answers`: whether it can be used; raises nothing while it starts.
    """
    child = None
    if not _runs(installation, name):
        with installation.log(name).open("ab") as output:
            child = start(
                list(command),
                environment={**os.environ, **marks(source_mark(installation), name)},
                folder=folder,
                output=output,
            )
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while not answers():
        # A child that is about to run its program has no mark that others can read.
        ended = child.poll() is not None if child else not _runs(installation, name)
        if ended or time.monotonic() > deadline:
            raise SetupError(
                f"{name} {'has ended' if ended else 'does not answer'}; the end of its log:\n"
                f"{log_end(installation.log(name))}",
                remedy="correct what it names, and start the demo again",
            )
        Event().wait(_POLL_SECONDS)


def _runs(installation: Installation, name: str) -> bool:
    return name in marked(source_mark(installation)).values()
