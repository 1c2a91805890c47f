"""Two consumers share four partitions: each event is registered once, whoever is stopped, killed or revived."""

import signal
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, consuming, query
from tests.support.eventually import eventually
from tests.support.kafka import KafkaBroker, TopicFeed

pytestmark = pytest.mark.kafka

ORDERS = "public.orders"
TABLES = ({"name": ORDERS, "id": ["id"], "columns": {"id": "int", "note": "text"}},)
PARTITIONS = range(4)
ROUND = 40
_OWNERS = """
SELECT assignment_owner, count(*) FROM cdc.stream_partition WHERE assignment_owner IS NOT NULL GROUP BY 1 ORDER BY 2
"""
_ROWS = "SELECT coalesce(sum(rows), 0) FROM cdc.slice"
_NAMES = "SELECT partition FROM cdc.v_stream_partition ORDER BY stream_partition"
_SECONDS_TO_MOVE = 20
"""Six seconds of a consumer's lifetime, one beat, and the opening; the machine may have other work."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    folder = tmp_path / "broker"
    folder.mkdir()
    broker = KafkaBroker(folder=folder)
    broker.start()
    yield broker
    broker.kill()


def owned(cdc: CommandLine) -> list[int]:
    """How many partitions each owner has."""
    return [count for _, count in query(cdc.store_url, _OWNERS)]


def registers(cdc: CommandLine, rows: int) -> bool:
    return eventually(lambda: query(cdc.store_url, _ROWS) == [(rows,)], 120)


def test_every_event_is_registered_once_while_consumers_and_broker_die(
    broker: KafkaBroker, tmp_path: Path, store_url: str
) -> None:
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=broker.servers, tables=TABLES)
    cdc = CommandLine(folder=tmp_path, source_url=store_url, store_url=store_url)
    cdc.write_settings(**feed.document | {"slice_length": "1s"})
    feed.create(ORDERS, partitions=len(PARTITIONS))
    written = count(ROUND, ROUND)

    def write() -> int:
        """Writes a round of events, in every partition. Returns the number of all events."""
        end = next(written)
        for number in range(end - ROUND, end):
            feed.write(ORDERS, number, "new", partition=number % len(PARTITIONS))
        return end

    assert cdc.run("setup-source").exit_code == 0
    with consuming(cdc, "first") as first, consuming(cdc, "second") as second:
        assert eventually(lambda: owned(cdc) == [2, 2], 180)
        assert registers(cdc, write())

        first.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        assert eventually(lambda: owned(cdc) == [4])
        moved = time.monotonic() - stopped
        sys.stdout.write(f"partitions of a stopped consumer moved in {moved:.1f} s\n")
        assert moved < _SECONDS_TO_MOVE
        assert registers(cdc, write())

        first.send_signal(signal.SIGCONT)
        assert eventually(lambda: owned(cdc) == [2, 2], 180)
        broker.kill()
        broker.start()
        assert registers(cdc, write())

        second.kill()
        assert registers(cdc, write())
        assert first.poll() is None
    assert feed.notes(ORDERS) == dict.fromkeys(range(next(written) - ROUND), "new")
    assert query(store_url, _NAMES) == [(f"{feed.topic(ORDERS)} [{number}]",) for number in PARTITIONS]
