"""Processes of a bank whose clocks jump by hours: each has its own time of day, which a file tells."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import psutil

from cdc_pipeline.launcher.processes import Process
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.state import Installation
from tests.chaos.bank import CONSUMER, WORKERS, Bank, with_own_workers
from tests.chaos.fire import Kind, Lasting, Strike

LIBRARY = "vendor/libfaketime/src/libfaketime.so.1"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the library's own names there
RIGHT = "+0"
HOURS = 2, 30
SECONDS = 4, 12


def with_jumping_clocks(
    settings: Settings, config: Path, installation: Installation
) -> tuple[Installation, tuple[Process, ...]]:
    """Consumer and workers tell the time by their files; the servers, whose clocks decide, tell the right one."""
    renewed, described = with_own_workers(settings, config, installation)
    return renewed, tuple(
        _by_its_clock(process, renewed) if process.name in {CONSUMER, *WORKERS} else process for process in described
    )


def _by_its_clock(process: Process, installation: Installation) -> Process:
    """Monotonic time goes on as ever, and the file is looked at once a second."""
    clock = _clock(installation, process.name)
    clock.parent.mkdir(exist_ok=True)
    clock.write_text(RIGHT, encoding="utf-8")
    own = {
        "LD_PRELOAD": str(library()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
    return replace(process, environment={**process.environment, **own})


def library() -> Path:
    found = importlib.util.find_spec("libfaketime")
    return Path((found and found.origin) or ".").parent / LIBRARY


def _clock(installation: Installation, name: str) -> Path:
    return installation.home / "clocks" / name


def jump(name: str, direction: str) -> Strike:
    """`direction`: `+` is ahead, `-` is behind. The end of it is a jump back to the right time."""

    def strike(bank: Bank, chance: Random) -> Lasting:
        clock = _clock(bank.installation, name)

        def set_right() -> None:
            clock.write_text(RIGHT, encoding="utf-8")

        bank.process(name)
        clock.write_text(f"{direction}{chance.uniform(*HOURS):.3f}h", encoding="utf-8")
        return Lasting(seconds=chance.uniform(*SECONDS), end=set_right)

    return strike


@contextmanager
def without_leftovers() -> Iterator[None]:
    """What the library of a killed process leaves in shared memory goes with the block."""
    before = set(_shared())
    yield
    for path in set(_shared()) - before:
        if not psutil.pid_exists(int(path.name.rpartition("_")[2])):
            path.unlink(missing_ok=True)


def _shared() -> Iterator[Path]:
    for pattern in ("faketime_shm_*", "sem.faketime_sem_*"):
        yield from SHARED_MEMORY.glob(pattern)


CLOCKS = tuple(
    Kind(site=name, fault=fault, share=1, strike=jump(name, direction))
    for name in (CONSUMER, WORKERS[0])
    for fault, direction in (("clock hours ahead", "+"), ("clock hours behind", "-"))
)
