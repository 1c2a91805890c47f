"""Processor seconds and peak memory of this process, of its children and of the servers that it uses."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.figures import Sample

CLIENT = "client"
_FORGET_PEAK = "5"
"""Written to clear_refs of a process: its peak memory begins again at what it has now (Linux, proc(5))."""


@dataclass(frozen=True, slots=True)
class Meter:
    """`servers`: name -> process id. Their children count with them and not with the client."""

    servers: dict[str, int] = field(default_factory=dict)

    def sample(self, run: Callable[[], int]) -> tuple[int, Sample]:
        """Runs it; returns the rows that it saw, and what that took."""
        before = self._processor_seconds()
        for processes in self._processes().values():
            for process in processes:
                _forget_peak(process.pid)
        started = time.perf_counter()
        rows = run()
        wall = time.perf_counter() - started
        after = self._processor_seconds()
        spent = {name: max(0.0, seconds - before.get(name, 0.0)) for name, seconds in after.items()}
        return rows, Sample(rows=rows, wall_seconds=wall, processor_seconds=spent, peak_bytes=self._peaks())

    def _processes(self) -> Mapping[str, list[psutil.Process]]:
        found = {name: _tree(process) for name, process in self.servers.items()}
        served = {process.pid for processes in found.values() for process in processes}
        return {CLIENT: [process for process in _tree(os.getpid()) if process.pid not in served], **found}

    def _processor_seconds(self) -> dict[str, float]:
        return {name: sum(map(_spent, processes)) for name, processes in self._processes().items()}

    def _peaks(self) -> dict[str, int]:
        return {
            name: max((peak_bytes(process.pid) for process in processes), default=0)
            for name, processes in self._processes().items()
        }


def peak_bytes(process: int) -> int:
    """The most resident memory that a process had since its peak was forgotten; 0 for one that has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _tree(process: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(process)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _spent(process: psutil.Process) -> float:
    """Children that have ended count with their parent."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _forget_peak(process: int) -> None:
    """Where that is not allowed the peak is that since the process began."""
    with suppress(OSError):
        Path(f"/proc/{process}/clear_refs").write_text(_FORGET_PEAK, encoding="ascii")
