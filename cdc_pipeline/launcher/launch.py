"""Starts child processes, optionally under another account or tied to the caller's life, kills them, and keeps logs."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

import psutil

from cdc_pipeline.launcher.account import Account
from cdc_pipeline.settings.installation.ports import LOOPBACK

LONGEST_LOG_BYTES = 16 << 20
LONGEST_COPY_BYTES = 2 * LONGEST_LOG_BYTES
SHORTEN_PAUSE = timedelta(seconds=60)
"""Before logs are tried again of which one could not be shortened."""
_LOG_LINES = 20
_IDLE_WORKER = "LocalExecutor: <idle>"
"""The end of the title that Airflow gives to a worker of its scheduler that has no task."""
EVERY_HOST = "*"
"""As the only name in no_proxy."""


def log_end(log: Path) -> str:
    """Returns the last lines of a process's log; "" if there is none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-_LOG_LINES:])


def opened_log(path: Path) -> BinaryIO:
    """Opens a log for appending. One that is too long becomes `.log.1` first: its process does not write to it yet."""
    with suppress(OSError):
        if path.stat().st_size > LONGEST_LOG_BYTES:
            path.replace(_put_aside(path))
    return path.open("ab")


def shorten_each(logs: Iterable[Path], not_before: float) -> float:
    """Shortens logs unless it is earlier than `not_before`, and returns when to try again, by the monotonic clock."""
    now = time.monotonic()
    if now < not_before:
        return not_before
    failed = [path for path in logs if not shorten(path)]
    return now + SHORTEN_PAUSE.total_seconds() if failed else now


def shorten(path: Path) -> bool:
    """Copies the end of a log that is too long to `.log.1`, which replaces an older one, and empties the log.

    Every writer appends, so it goes on at the beginning. What is written between the copy and the emptying is lost.
    Returns False if the log could not be copied: both files stay as they are.
    """
    copy = path.with_suffix(".log.new")
    try:
        size = path.stat().st_size
        if size > LONGEST_LOG_BYTES:
            with path.open("rb") as source, copy.open("wb") as end:
                source.seek(max(0, size - LONGEST_COPY_BYTES))
                shutil.copyfileobj(source, end)
            copy.replace(_put_aside(path))
            os.truncate(path, 0)
    except FileNotFoundError:
        return True
    except OSError:
        with suppress(OSError):
            copy.unlink(missing_ok=True)
        return False
    return True


def _put_aside(path: Path) -> Path:
    return path.with_suffix(".log.1")


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment with this machine in no_proxy: a proxy could not reach servers on loopback."""
    lower, upper = environment.get("no_proxy"), environment.get("NO_PROXY")
    # Libraries that know both look at the second one only if there is no first.
    both = {"no_proxy": upper or "" if lower is None else lower, "NO_PROXY": lower or "" if upper is None else upper}
    return {**environment, **{name: _with_loopback(named) for name, named in both.items()}}


def _with_loopback(named: str) -> str:
    return named if named.strip() == EVERY_HOST else ",".join(filter(None, (named, LOOPBACK, "localhost")))


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


def kill_idle_workers(group: int) -> None:
    """Kills the workers without a task that Airflow's scheduler left in its process group: they would wait for ever."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) == group and " ".join(process.cmdline()).rstrip().endswith(_IDLE_WORKER):
                process.kill()
