"""A process that takes one verb of a pipeline and gets a signal from itself at one place of it."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from threading import Lock, Timer

from cdc_pipeline.errors import CdcError
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.endpoints import Endpoints
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline, open_pipeline
from tests.crash.failpoint import Site
from tests.crash.world import take_snapshot
from tests.support.eventually import eventually
from tests.support.pipelines import consume

TIMEOUT_SECONDS = 180
_STOPPED = "T"


def stream_to_slices(pipeline: Pipeline, _table: TableName) -> None:
    consume(pipeline)


def slice_to_lake(pipeline: Pipeline, table: TableName) -> None:
    pipeline.slice_worker().slice_to_lake(table)


def snapshot_to_lake(pipeline: Pipeline, table: TableName) -> None:
    """snapshot_to_staging and staging_to_lake: orchestrator and worker slot by turns."""
    take_snapshot(pipeline, [table])


def maintain(pipeline: Pipeline, table: TableName) -> None:
    pipeline.maintenance().maintain(table)


VERBS: Mapping[str, Callable[[Pipeline, TableName], None]] = {
    verb.__name__: verb for verb in (stream_to_slices, slice_to_lake, snapshot_to_lake, maintain)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the victim is to do, and where which signal reaches it, or so many seconds behind that."""

    settings: Settings
    endpoints: Endpoints
    verb: str
    table: TableName
    site: Site
    signal: signal.Signals
    seconds: float
    log: Path


@dataclass(slots=True)
class Fate:
    """Injected as `on_step`."""

    site: Site
    signal: signal.Signals
    seconds: float
    reached: Counter[tuple[str, Moment]] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    def __call__(self, name: str, moment: Moment) -> None:
        with self.lock:
            self.reached[name, moment] += 1
            is_here = Site(name, moment, self.reached[name, moment]) == self.site
        if is_here and self.seconds:
            Timer(self.seconds, self.strike).start()
        elif is_here:
            self.strike()

    def strike(self) -> None:
        os.kill(os.getpid(), self.signal)


def obey(order: Order, answer: Connection) -> None:
    """In the process of the victim. What it answers is how it ended, if it came so far."""
    with order.log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    fate = Fate(order.site, order.signal, order.seconds)
    try:
        with open_pipeline(order.settings, order.endpoints, on_step=fate) as pipeline:
            VERBS[order.verb](pipeline, order.table)
        answer.send("success")
    except CdcError as error:
        answer.send(f"{type(error).__name__}: {error.found}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    process: ForkServerProcess
    answer: Connection

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def is_killed(self) -> bool:
        """Waits for its end."""
        self.process.join(TIMEOUT_SECONDS)
        return self.process.exitcode == -signal.SIGKILL

    def is_stopped(self) -> bool:
        """Waits until it is."""
        return eventually(lambda: self.process.exitcode is not None or self._state() == _STOPPED) and (
            self.process.exitcode is None
        )

    def ending(self) -> str:
        """How it ended after it went on."""
        os.kill(self.pid, signal.SIGCONT)
        self.process.join(TIMEOUT_SECONDS)
        return str(self.answer.recv()) if self.answer.poll() else f"exit code {self.process.exitcode}"

    def _state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]


def started(order: Order) -> Victim:
    """Forked from a process that has everything imported and nothing opened."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, "pyspark.sql.connect.session", "pandas"])
    answer, to_us = context.Pipe(duplex=False)
    process = context.Process(target=obey, args=(order, to_us), daemon=True)
    process.start()
    to_us.close()
    return Victim(process=process, answer=answer)
