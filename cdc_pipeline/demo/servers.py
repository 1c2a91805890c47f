"""Servers that the demo reads from, beside the stack's own: each runs until `cdc down`, like the stack."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event

from cdc_pipeline.errors import SetupError
from cdc_pipeline.installation.state import Installation
from cdc_pipeline.launcher.launch import start
from cdc_pipeline.launcher.marked import marked, marks
from cdc_pipeline.launcher.users import source_mark

TIMEOUT = timedelta(minutes=5)
_POLL_SECONDS = 0.2
_TAIL_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceServer:
    """`name`: of the process and its log. `answers`: whether it can be used; raises nothing while it starts."""

    name: str
    command: tuple[str, ...]
    folder: Path
    answers: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


def ensure_server(installation: Installation, server: SourceServer) -> None:
    """Starts the server unless it runs, and returns when it answers. Raises SetupError if it ends before that."""
    if server.name not in marked(source_mark(installation)).values():
        with installation.log(server.name).open("ab") as output:
            start(
                list(server.command),
                environment={**os.environ, **server.environment, **marks(source_mark(installation), server.name)},
                folder=server.folder,
                output=output,
            )
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while not server.answers():
        ended = server.name not in marked(source_mark(installation)).values()
        if ended or time.monotonic() > deadline:
            raise SetupError(
                f"{server.name} {'has ended' if ended else 'does not answer'}; the end of its log:\n"
                f"{_tail(installation.log(server.name))}",
                remedy="correct what it names, and start the demo again",
            )
        Event().wait(_POLL_SECONDS)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:])
