"""Opens a pipeline for one process and closes its connections when the block ends."""

import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_pipeline.lake.protocol import Lake
from cdc_pipeline.metadata_store.store import open_metadata_store
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.file import load_settings, settings_path
from cdc_pipeline.settings.installation.endpoints import Endpoints, endpoints
from cdc_pipeline.settings.installation.state import home_of
from cdc_pipeline.steps import OnStep, no_step
from cdc_pipeline.time_slice import utc_now
from cdc_pipeline.wiring.adapters import open_lake, open_object_store, source_of
from cdc_pipeline.wiring.pipeline import Pipeline

if TYPE_CHECKING:
    from cdc_pipeline.lake.spark_lake import SparkLake

_TERMINATED = 128 + signal.SIGTERM

LakeFactory = Callable[[ObjectStore, OnStep], Lake]


class LakePerThread:
    """Gives each thread a lake of its own: one Spark session must not be used by two threads at the same time.

    Opens it at a thread's first call and keeps it.
    """

    def __init__(self, open_lake: "Callable[[], SparkLake]") -> None:
        self._open = open_lake
        self._own = threading.local()
        self._lock = threading.Lock()
        self._opened: list[SparkLake] = []

    def __call__(self) -> "SparkLake":
        """Returns the lake of the calling thread."""
        lake: SparkLake | None = getattr(self._own, "lake", None)
        if lake is None:
            lake = self._own.lake = self._open()
            with self._lock:
                self._opened.append(lake)
        return lake

    def close(self) -> None:
        """Ends the sessions of all threads."""
        with self._lock:
            while self._opened:
                self._opened.pop().close()


@contextmanager
def open_pipeline(
    settings: Settings, endpoints: Endpoints, *, on_step: OnStep = no_step, make_lake: LakeFactory | None = None
) -> Iterator[Pipeline]:
    """Connects to the metadata store at once and to Spark at the first use. Closes both when the block ends.

    `make_lake` builds the lake to use in place of the one on Spark.
    """
    objects = open_object_store(settings)
    with open_metadata_store(endpoints.metadata_store_url, stream=settings.name, on_step=on_step) as store:
        worker = settings.worker
        spark = LakePerThread(
            lambda: open_lake(
                endpoints.spark_url,
                objects,
                on_step,
                upsert=worker.upsert,
                rows_without_spark=worker.rows_without_spark,
            )
        )
        try:
            yield Pipeline(
                settings=settings,
                endpoints=endpoints,
                source=source_of(settings, endpoints, on_step),
                objects=objects,
                store=store,
                open_lake=spark if make_lake is None else cache(lambda: make_lake(objects, on_step)),
                owner=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}",
                clock=utc_now,
                new_id=uuid.uuid4,
                on_step=on_step,
            )
        finally:
            spark.close()


@contextmanager
def opened_pipeline(config: Path | None = None, *, on_step: OnStep = no_step) -> Iterator[Pipeline]:
    """Opens the pipeline of `config`, else of CDC_CONFIG, else of ./pipeline.yml.

    Its servers must run already; the CDC_ variables or the installation's home say where they are. Raises SettingsError
    before it connects to anything.
    """
    settings, found = _configured(config)
    with left_on_termination(), open_pipeline(settings, found, on_step=on_step) as pipeline:
        yield pipeline


@contextmanager
def left_on_termination() -> Iterator[None]:
    """On SIGTERM raises SystemExit inside the block: leases are released, and running Spark work is cancelled.

    Does nothing outside the main thread, where no signal handler can be set.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def configured_endpoints(config: Path | None = None) -> Endpoints:
    """Returns where the servers are now. Each call reads it again, since an installation may move to other ports."""
    return _configured(config)[1]


def _configured(config: Path | None) -> tuple[Settings, Endpoints]:
    settings = load_settings(settings_path(config, os.environ))
    return settings, endpoints(settings, home_of(settings, os.environ))
