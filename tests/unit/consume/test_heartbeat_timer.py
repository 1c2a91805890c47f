"""How often an idle or late stream is cut, in simulated time: one simulated second is five steps."""

import json
from datetime import UTC, datetime, timedelta
from typing import Protocol

import numpy as np
import pytest

from cdc_pipeline.consume.heartbeat_timer import HeartbeatTimer
from cdc_pipeline.consume.slice_cutter import SliceCutter
from cdc_pipeline.record import encode_position
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.partition import PartitionLines
from cdc_pipeline.sources.debezium.record_line import RecordLine, record_content
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.stream import DebeziumStream, transactions_of
from cdc_pipeline.sources.kafka.records import PartitionRecords
from cdc_pipeline.sources.known import PartitionProgress
from cdc_pipeline.sources.protocol import EventBatch, Marker
from cdc_pipeline.time_slice import EPOCH
from tests.support.decoding import orders, postgres

LENGTH = timedelta(seconds=60)
LONG = 600.0
START = datetime(2026, 1, 1, tzinfo=UTC)


def time_at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class SimulatedSource(Protocol):
    def come(self, committed: float) -> None: ...
    def read(self, wait: timedelta) -> EventBatch | None: ...
    def send_marker(self, text: str, *, is_heartbeat: bool) -> None: ...


class SimulatedTopic:
    """One partition of a topic. It takes no messages, and its last event is held back until another one follows."""

    def __init__(self) -> None:
        table = orders(id=["id"], columns={"id": "int8", "note": "text"})
        self._part = PartitionRecords(topic="orders", partition=0, offset=0, ended_at=0)
        stream = DebeziumStream(
            partitions={0: PartitionLines(self._part, record_content)},
            progress={0: PartitionProgress(offset=encode_position(0))},
            decoder=DebeziumDecoder(
                tables=DebeziumTables((table,), {}, {0: table.table}, ()),
                sequence_by=(),
                last_position={0: {}},
                alone=True,
            ),
            position=0,
            commit_time=START,
            folders=lambda: [0],
        )
        self.read, self.send_marker = stream.read, stream.send_marker

    def come(self, committed: float) -> None:
        place = self._part.ended_at or 0
        event = postgres("c", place + 10, after={"id": place, "note": ""})
        event["source"]["ts_ms"] = round(time_at(committed).timestamp() * 1000)
        line = json.dumps(event).encode()
        self._part.waiting.append(
            RecordLine(place=place, file="orders", number=place, written=0, key=None, value=line, headers={})
        )
        self._part.ended_at = place + 1


class SimulatedLog:
    """The log of a database whose clock is right, which takes marker messages. Events have no rows."""

    def __init__(self, now: "Simulation") -> None:
        self._now = now
        self._places = 0
        self._waiting: list[tuple[float, str | None]] = []

    def come(self, committed: float) -> None:
        self._waiting.append((committed, None))

    def send_marker(self, text: str, *, is_heartbeat: bool) -> None:
        del is_heartbeat
        self._waiting.append((self._now.seconds, text))

    def read(self, wait: timedelta) -> EventBatch | None:
        del wait
        if not self._waiting:
            return None
        (committed, text), place = self._waiting.pop(0), self._places
        self._places += 1
        time = (time_at(committed) - EPOCH) // timedelta(microseconds=1)
        markers = () if text is None else (Marker(text=text, commit_position=place),)
        return EventBatch(events=(), transactions=transactions_of([(place, place + 1, time)]), markers=markers)


class Simulation:
    """A consumer without a store. `ahead`: of its clock. `cuts`: the time of each, and the rows or events in it.

    `idle`: when it asked a source that it took for idle.
    """

    def __init__(self, *, ahead: float = 0) -> None:
        self.seconds = 0.0
        self.cuts: list[tuple[float, int]] = []
        self.idle: list[float] = []
        self._ahead = ahead

    def run(self, source: SimulatedSource, committed: list[float], *, late: float = 0, until: float = LONG) -> None:
        """`committed`: of each event; it comes that much later."""
        cutter = SliceCutter(start=0, commit_time=START, slice_length=LENGTH, slice_rows=10_000)
        timer = HeartbeatTimer(
            cutter=cutter, clock=lambda: time_at(self.seconds + self._ahead), monotonic=lambda: self.seconds
        )
        coming = list(committed)
        for tick in np.arange(0, until, 0.2):
            self.seconds = float(tick)
            while coming and coming[0] + late <= self.seconds:
                source.come(coming.pop(0))
            batch = source.read(timedelta(0))
            if batch is not None:
                for cut in cutter.add(batch):
                    self.cuts.append((self.seconds, sum(part.rows.num_rows for part in cut.slices.values())))
                    timer.note_cut()
                timer.note_read(batch)
            if timer.is_due:
                self.idle += [self.seconds] if timer.is_idle else []
                source.send_marker("cut", is_heartbeat=not timer.is_idle)
                timer.note_sent()


def test_an_idle_topic_is_cut_once_for_each_slice_length() -> None:
    simulation = Simulation()
    simulation.run(SimulatedTopic(), [-3600.0])
    assert LONG / 60 - 1 <= len(simulation.cuts) <= LONG / 60 + 2


@pytest.mark.parametrize(("waiting", "idle"), [(0, [1, 61, 122]), (1, [2, 62, 123])])
def test_a_quiet_topic_counts_as_idle_within_seconds_of_its_opening_and_then_at_each_cut(
    waiting: int, idle: list[int]
) -> None:
    """Its last event was registered an hour ago, or waits to be read."""
    simulation = Simulation(ahead=3600)
    simulation.run(SimulatedTopic(), [0.0] * waiting, until=130)
    assert [round(seconds) for seconds in simulation.idle] == idle


@pytest.mark.parametrize("ahead", [0, 0.5, 5, 61, 3600, -5, -3600])
def test_an_idle_database_is_cut_once_for_each_slice_length_whatever_the_clock_says(ahead: float) -> None:
    simulation = Simulation(ahead=ahead)
    simulation.run(SimulatedLog(simulation), [])
    assert LONG / 60 - 1 <= len(simulation.cuts) <= LONG / 60 + 2


@pytest.mark.parametrize("late", [0, 5, 20, 90])
def test_events_that_come_late_are_not_cut_every_second(late: float) -> None:
    """At each change of the label, when the slice is due, and once more for the event that was held back."""
    simulation = Simulation()
    simulation.run(SimulatedTopic(), [each - late for each in np.arange(0.5, LONG, 2.3).tolist()], late=late)
    assert LONG / 60 - 1 <= len(simulation.cuts) <= 3 * LONG / 60 + 2


@pytest.mark.parametrize("late", [0, 5, 90])
@pytest.mark.parametrize("since", np.arange(0.5, 121, 23.9).tolist())
def test_the_last_event_of_a_topic_is_cut_within_a_slice_length(late: float, since: float) -> None:
    for before in ([], [since - 0.5], [since - 20], [since - 70, since - 60.2, since - 1.4, since - 0.3]):
        simulation, came = Simulation(), [*before, since]
        simulation.run(SimulatedTopic(), [each - late for each in came], late=late, until=since + 63)
        assert sum(rows for _, rows in simulation.cuts) == len(came)
