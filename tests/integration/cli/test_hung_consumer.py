"""A consumer shows by its heartbeat that it lives, whatever it waits for, and is started again when it does not."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from cdc_pipeline.launcher.control import down, process_states, start_and_wait
from cdc_pipeline.launcher.health import heartbeat_url
from cdc_pipeline.launcher.heartbeat import HEARTBEAT_VARIABLE
from cdc_pipeline.launcher.processes import CONSUMER, Process
from cdc_pipeline.launcher.supervisor import ProcessState
from cdc_pipeline.settings.installation.ports import free_port
from cdc_pipeline.settings.installation.state import Installation, open_installation
from tests.support.command_line import CommandLine, query
from tests.support.eventually import eventually
from tests.support.streams import run_sql

FRESH_SECONDS, SILENCE = 5, 6.0
ROWS = 50
INSERT = "INSERT INTO orders SELECT n FROM generate_series({}, {}) n"
GAPS = """
SELECT count(*) FROM (SELECT start_offset, lag(end_offset) OVER (ORDER BY number) AS before FROM cdc.slice) AS slices
WHERE before <> start_offset
"""


@pytest.fixture
def installation(cdc: CommandLine) -> Iterator[Installation]:
    yield open_installation(cdc.folder / "home")
    down(cdc.folder / "home")


def quietly(_states: list[ProcessState]) -> None:
    return


def consumer_of(cdc: CommandLine, installation: Installation) -> Process:
    """As `processes` describes it, with shorter timeouts."""
    beat = str(installation.home / "beat")
    return Process(
        name=CONSUMER,
        waits_for="the consumer to read",
        command=(sys.executable, "-m", "cdc_pipeline", "consume"),
        environment={
            "CDC_CONFIG": str(cdc.folder / "pipeline.yml"),
            "CDC_HOME": str(installation.home),
            "PYTHONPATH": str(Path.cwd()),
            HEARTBEAT_VARIABLE: beat,
        },
        health=heartbeat_url(beat, seconds=FRESH_SECONDS),
        silence=SILENCE,
    )


def pid_of_consumer(installation: Installation) -> int | None:
    return process_states(installation.home)[0].pid


def said(installation: Installation) -> str:
    return installation.log(CONSUMER).read_text(encoding="utf-8")


def ids_in_slices(cdc: CommandLine) -> list[int]:
    paths = [path for (path,) in query(cdc.store_url, "SELECT path FROM cdc.slice WHERE rows > 0 ORDER BY number")]
    return [number for path in paths for number in pq.read_table(cdc.folder / "lake" / path)["id"].to_pylist()]


def test_a_consumer_that_was_stopped_is_started_again_and_no_row_is_lost(
    cdc: CommandLine, installation: Installation
) -> None:
    cdc.write_settings(slice_length="1s")
    assert cdc.run("setup-source").exit_code == 0
    start_and_wait(installation, (consumer_of(cdc, installation),), quietly)
    run_sql(cdc.source_url, INSERT.format(1, ROWS))
    assert eventually(lambda: query(cdc.store_url, "SELECT sum(rows) FROM cdc.slice") == [(ROWS,)])
    stopped = pid_of_consumer(installation)
    os.kill(stopped or 0, signal.SIGSTOP)
    run_sql(cdc.source_url, INSERT.format(ROWS + 1, 2 * ROWS))
    assert eventually(lambda: pid_of_consumer(installation) not in (stopped, None), 120)
    run_sql(cdc.source_url, INSERT.format(2 * ROWS + 1, 3 * ROWS))
    assert eventually(lambda: query(cdc.store_url, "SELECT sum(rows) FROM cdc.slice") == [(3 * ROWS,)])
    assert ids_in_slices(cdc) == list(range(1, 3 * ROWS + 1))
    assert query(cdc.store_url, GAPS) == [(0,)]


def test_a_consumer_whose_source_is_away_lives_and_is_left_alone(cdc: CommandLine, installation: Installation) -> None:
    assert cdc.run("setup-source").exit_code == 0
    url = cdc.source_url.replace(f":{urlsplit(cdc.source_url).port}/", f":{free_port()}/")
    cdc.write_settings(source={"kind": "postgres", "url": url, "publication": cdc.name, "slot": cdc.name})
    start_and_wait(installation, (consumer_of(cdc, installation),), quietly)
    pid = pid_of_consumer(installation)
    assert eventually(lambda: said(installation).count("the stream stands still") == 5)
    assert pid_of_consumer(installation) == pid
