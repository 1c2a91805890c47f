"""A shop in MariaDB whose changes reach the pipeline by something else, such as Kafka, and the proof at rest."""

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import TypeVar

import structlog

from cdc_pipeline.demo.mariadb import seed_mariadb, start_mariadb
from cdc_pipeline.demo.seed import DEMO_SCALE, Scale
from cdc_pipeline.errors import UsageError
from cdc_pipeline.operations.verification import Verified
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.ports import LOOPBACK, free_port
from cdc_pipeline.settings.installation.state import Installation
from cdc_pipeline.wiring import Pipeline
from cdc_pipeline.wiring.against import verify_against

_LONGEST_WAY = timedelta(minutes=5)
_POLL_SECONDS = 2.0
_Source = TypeVar("_Source")

log = structlog.get_logger()


def start_shop(installation: Installation, folder: Path, *, more_rights: str = "", scale: Scale = DEMO_SCALE) -> str:
    """Starts MariaDB and fills the shop; `folder` is that of pipeline.yml. Returns the URL for the shop's sessions.

    `more_rights`: of the user in `reader_url`, such as ", RELOAD".
    """
    url = start_mariadb(installation, folder / "mariadb", _port(folder), more_rights=more_rights)
    seed_mariadb(url, scale)
    return url


def reader_url(folder: Path) -> str:
    """Returns the URL of the same server for the user that reads its log and its tables."""
    password = (folder / "mariadb" / "password").read_text(encoding="utf-8")
    return f"mysql://cdc_source_reader:{password}@{LOOPBACK}:{_port(folder)}"


def source_as(settings: Settings, kind: type[_Source], name: str) -> _Source:
    """Returns the settings of the source. Raises UsageError if they are of another kind than `name`."""
    if not isinstance(settings.source, kind):
        raise UsageError(
            f"pipeline.yml in {settings.folder} reads a source of the kind {settings.source.kind}",
            expected=name,
            remedy="use another --folder",
        )
    return settings.source


def verify_at_rest(pipeline: Pipeline, tables: Sequence[TableName]) -> tuple[Verified, ...]:
    """Compares with MariaDB until the last change has come through, or five minutes are over."""
    url = reader_url(pipeline.settings.folder)
    deadline = time.monotonic() + _LONGEST_WAY.total_seconds()
    while True:
        verdicts = verify_against(pipeline, tables, url)
        if all(verdict.is_equal for verdict in verdicts) or time.monotonic() > deadline:
            return verdicts
        log.info("changes are on their way", tables=[str(each.table) for each in verdicts if not each.is_equal])
        Event().wait(_POLL_SECONDS)


def _port(folder: Path) -> int:
    """A free port, which is the same at the next call."""
    path = folder / "mariadb.port"
    if not path.exists():
        path.write_text(str(free_port()), encoding="utf-8")
    return int(path.read_text(encoding="utf-8"))
