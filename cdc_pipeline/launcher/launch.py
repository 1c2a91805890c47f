"""Starts child processes, optionally under another account or tied to the caller's life, and kills them."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import psutil

from cdc_pipeline.launcher.account import Account

_LOG_LINES = 20


def log_end(log: Path) -> str:
    """Returns the last lines of a process's log; "" if there is none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-_LOG_LINES:])


def start(
    command: list[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    output: BinaryIO,
    account: Account | None = None,
    tied: bool = False,
) -> subprocess.Popen[bytes]:
    """Starts a child in a process group of its own, without input.

    `tied`: the child gets SIGTERM when this process ends for any reason, if the system has `setpriv`.
    """
    setpriv = shutil.which("setpriv")
    tie = [setpriv, "--pdeathsig", "TERM", "--"] if tied and setpriv else []
    return subprocess.Popen(
        [*tie, *command],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        process_group=0,
        user=None if account is None else account.user_id,
        group=None if account is None else account.group_id,
        extra_groups=None if account is None else [],
    )


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kills the child, its process group and its descendants in other groups, also if they are stopped."""
    try:
        descendants = psutil.Process(child.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        descendants = []
    child.kill()
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    for process in descendants:
        with suppress(psutil.NoSuchProcess):
            process.kill()
