"""Servers that the demo reads from, beside the stack's own: each runs until `cdc down`, like the stack."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceServer:
    """`name`: of the process and its log. `answers`: whether it can be used; raises nothing while it starts."""

    name: str
    command: tuple[str, ...]
    folder: Path
    answers: Callable[[], bool]


def ensure_server(installation: Installation, server: SourceServer) -> None:
    """Starts the server unless it runs, and returns when it answers. Raises SetupError if it ends before that."""
    child = None
    if not _is_marked(installation, server):
        with installation.log(server.name).open("ab") as output:
            child = start(
                list(server.command),
                environment={**os.environ, **marks(source_mark(installation), server.name)},
                folder=server.folder,
                output=output,
            )
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while not server.answers():
        # A child that is about to run its program has no mark that others can read.
        ended = child.poll() is not None if child else not _is_marked(installation, server)
        if ended or time.monotonic() > deadline:
            raise SetupError(
                f"{server.name} {'has ended' if ended else 'does not answer'}; the end of its log:\n"
                f"{log_end(installation.log(server.name))}",
                remedy="correct what it names, and start the demo again",
            )
        Event().wait(_POLL_SECONDS)


def _is_marked(installation: Installation, server: SourceServer) -> bool:
    return server.name in marked(source_mark(installation)).values()
