"""A pipeline as the environment of this process describes it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc_pipeline.settings_file import load_settings, settings_path
from cdc_pipeline.stack.endpoints import Endpoints, endpoints
from cdc_pipeline.stack.state import home_of
from cdc_pipeline.steps import OnStep, no_step
from cdc_pipeline.wiring import Pipeline, open_pipeline

_TERMINATED = 128 + signal.SIGTERM


@contextmanager
def opened_pipeline(config: Path | None = None, *, on_step: OnStep = no_step) -> Iterator[Pipeline]:
    """Settings from `config`, CDC_CONFIG or ./pipeline.yml; servers that run already, found by CDC_ variables or home.

    Raises SettingsError before anything is touched.
    """
    settings = load_settings(settings_path(config, os.environ))
    found = endpoints(settings, home_of(settings, os.environ))
    with left_on_termination(), open_pipeline(settings, found, on_step=on_step) as pipeline:
        yield pipeline


@contextmanager
def left_on_termination() -> Iterator[None]:
    """SIGTERM ends the block like an error: its lease is released, and what runs in its Spark session is cancelled."""
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
    """Where the servers are now; read anew at each call, since an installation may move to other ports."""
    settings = load_settings(settings_path(config, os.environ))
    return endpoints(settings, home_of(settings, os.environ))
