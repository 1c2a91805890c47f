"""Opens a source's stream as a consumer does, and reads it to a marker message."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from cdc_pipeline.errors import SourceBusy
from cdc_pipeline.record import OPERATION, VERSION, encode_position
from cdc_pipeline.sources.known import LastCut, PartitionProgress, StreamStart
from cdc_pipeline.sources.protocol import ChangeStream
from cdc_pipeline.wiring import Pipeline
from tests.support.eventually import eventually


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one reader brought: events as (commit position, version, operation, id), transactions as (start, end)."""

    events: list[tuple[int, str, str, int]] = field(default_factory=list)
    transactions: list[tuple[int, int]] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)

    @property
    def changes(self) -> list[tuple[str, str, int]]:
        return [event[1:] for event in self.events]


@contextmanager
def reader(
    pipeline: Pipeline, progress: Mapping[int, PartitionProgress] | None = None, end: int = 0
) -> Iterator[ChangeStream]:
    """The source's stream, read from its beginning or on from `progress`, which a cut at `end` left."""
    known = pipeline.registered_stream()
    begun = {(at, name): file for at, reached in (progress or {}).items() for file, name in reached.begun.items()}
    survey = pipeline.source.survey(known)
    start = StreamStart(
        progress=progress
        or {number: PartitionProgress(offset=survey.first_offset) for number in survey.stream_partitions},
        last_cut=LastCut(position=encode_position(end), requested=False) if progress else None,
        tables=known.tables(),
        begun={} if progress is None else {number: reached.begun for number, reached in progress.items()},
        begin_file=lambda partition, name: begun.setdefault((partition, name), len(begun) + 1),
    )
    opened = list[ChangeStream]()

    def is_free() -> bool:
        try:
            opened.append(survey.open(start))
        except SourceBusy:
            return False
        return True

    assert eventually(is_free)
    with closing(opened[0]) as stream:
        yield stream


def read_to_now(stream: ChangeStream, text: str) -> Seen:
    """Everything up to a marker message that is sent now."""
    seen = Seen()
    stream.send_marker(text)
    while text not in seen.marks:
        batch = stream.read(timedelta(seconds=1))
        if batch is None:
            continue
        seen.marks += [mark.text for mark in batch.markers]
        places = zip(batch.transactions.commit_position, batch.transactions.end_position, strict=True)
        seen.transactions += [(int(start), int(end)) for start, end in places]
        for events in batch.events:
            rows = events.rows.select([VERSION, OPERATION, "id"]).to_pylist()
            positions = map(int, events.commit_position)
            seen.events += [
                (position, row[VERSION], row[OPERATION], row["id"])
                for position, row in zip(positions, rows, strict=True)
            ]
    return seen
