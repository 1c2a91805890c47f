"""Lines of the log on their way to the pipeline: held, sent again, and written into files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, Protocol

from tests.support.change_files import csv_text, json_lines, parquet_bytes
from tests.support.shards import RETENTION, MemoryShard, MemoryStreams

WRITERS = {".csv": csv_text, ".parquet": parquet_bytes, ".jsonl": json_lines}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """`text`: JSON. `repeats`: whether the lake is promised to bear that the log is sent again from there on."""

    partition: int
    text: str
    transaction: int
    repeats: bool


class Paper(Protocol):
    """Files of one kind."""

    def write(self, partition: int, texts: Sequence[str]) -> None: ...

    def odd(self, partition: int, text: str) -> None:
        """A line that is none."""
        ...

    def roll(self, partition: int) -> None:
        """The next lines of the partition lie in another file."""
        ...

    def expire(self) -> bool:
        """Half the time passes that lines are kept, or all of them are deleted. False where nothing is ever deleted."""
        ...


@dataclass(slots=True, kw_only=True)
class EventLines:
    """Implements `Paper`: one folder per stream partition, whose last file grows."""

    folder: Path
    files: dict[int, int] = field(default_factory=dict)

    def write(self, partition: int, texts: Sequence[str]) -> None:
        path = self.folder / str(partition) / f"{self.files.get(partition, 0):06}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{text}\n" for text in texts))

    def odd(self, partition: int, text: str) -> None:
        self.write(partition, [text])

    def roll(self, partition: int) -> None:
        self.files[partition] = self.files.get(partition, 0) + 1

    def expire(self) -> bool:
        return False


@dataclass(slots=True, kw_only=True)
class RowFiles:
    """Implements `Paper`: complete files, each with rows that have the same columns.

    `names`: the tables, by the numbers of their partitions. `is_named_by_order`: their names are their order.
    """

    folder: Path
    names: Sequence[str]
    suffix: str
    is_named_by_order: bool
    files: int = 0

    def write(self, partition: int, texts: Sequence[str]) -> None:
        for _, rows in groupby(map(_row, texts), key=list):
            path = self.folder / self.names[partition] / f"{self._next():08}{self.suffix}"
            self._put(path, WRITERS[self.suffix](list(rows)))

    def odd(self, partition: int, text: str) -> None:
        """A row that cannot be applied, as far as a file of the format may have one."""
        path = self.folder / self.names[partition] / f"{self._next():08}.csv"
        if self.suffix == ".csv":
            self._put(path, f"Op\n{text}\n".encode())

    def roll(self, partition: int) -> None:
        """Every file is written at once."""
        del partition

    def expire(self) -> bool:
        return False

    def _next(self) -> int:
        self.files += 1
        return self.files if self.is_named_by_order else self.files * 7_919 % 100_003

    def _put(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".tmp").write_bytes(content)
        path.with_suffix(".tmp").rename(path)


@dataclass(slots=True, kw_only=True)
class ShardRecords:
    """Implements `Paper`: records of streams, whose shards are split and, with `merges`, merged.

    `shards`: the stream and the open shard of each partition.
    """

    streams: MemoryStreams
    shards: dict[int, tuple[str, str]]
    merges: bool
    replaced: int = 0

    def __post_init__(self) -> None:
        for stream, shard in self.shards.values():
            self.streams.streams.setdefault(stream, {})[shard] = MemoryShard()

    def write(self, partition: int, texts: Sequence[str]) -> None:
        stream, shard = self.shards[partition]
        for text in texts:
            self.streams.put(stream, text.encode(), shard)

    def odd(self, partition: int, text: str) -> None:
        self.write(partition, [text])

    def roll(self, partition: int) -> None:
        """Merges the shard with another one that is open, or splits it. Iterators expire."""
        self.replaced += 1
        self.streams.generation += 1
        stream, shard = self.shards[partition]
        other = min({found for at, found in self.shards.values() if at == stream} - {shard}, default=None)
        if self.merges and other is not None and self.replaced % 2:
            self._replace(stream, (shard, other), f"shard-{self.replaced}-0")
        else:
            self._replace(stream, (shard,), *(f"shard-{self.replaced}-{half}" for half in range(2)))

    def expire(self) -> bool:
        self.streams.now += RETENTION * 0.6
        return True

    def _replace(self, stream: str, parents: tuple[str, ...], *children: str) -> None:
        self.streams.replace_shards(stream, parents, *children)
        for partition, (at, shard) in self.shards.items():
            if at == stream and shard in parents:
                self.shards[partition] = stream, children[partition % len(children)]


def _row(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


@dataclass(slots=True, kw_only=True)
class Arriving:
    """`ordered`: whether lines of a partition keep their order, and come once or from a transaction on again.

    Otherwise they come in any order, and any number of times. `holds`: whether a partition can be behind the others;
    two that are merged cannot. `late_by`: the number of transactions by which a line may be late; None for any.
    """

    paper: Paper
    ordered: bool
    holds: bool = True
    late_by: int | None = None
    held: dict[int, list[LogLine]] = field(default_factory=dict)
    arrived: dict[int, list[LogLine]] = field(default_factory=dict)
    has_expired: bool = False

    def expire(self) -> None:
        self.has_expired |= self.paper.expire()

    def send(self, lines: Sequence[LogLine]) -> None:
        for line in lines[:1]:
            self._flow_late(line.transaction)
        for partition, some in _by_partition(lines):
            if partition in self.held:
                self.held[partition] += some
            else:
                self._write(partition, some)

    def hold(self, partition: int) -> None:
        if self.holds:
            self.held.setdefault(partition, [])

    def flow(self, partition: int) -> None:
        lines = self.held.pop(partition, [])
        if not self.ordered:
            Random(len(lines)).shuffle(lines)
        self._write(partition, lines)

    def _flow_late(self, transaction: int) -> None:
        for partition, lines in list(self.held.items()):
            if self.late_by is not None and lines and transaction - lines[0].transaction >= self.late_by:
                self.flow(partition)

    def flow_all(self) -> None:
        for partition in list(self.held):
            self.flow(partition)

    def roll(self, partition: int) -> None:
        self.paper.roll(partition)

    def odd(self, partition: int, text: str) -> None:
        self.paper.odd(partition, text)

    def again(self, most: int) -> None:
        """The log from one of its last transactions on, as a connector sends it that was killed."""
        lines = [line for some in self.arrived.values() for line in some]
        known = sorted({line.transaction for line in lines})[1:]
        first = known[-min(most, len(known))] if known else 0
        repeated = [line for line in lines if line.transaction >= first > 0]
        if self.ordered and not all(line.repeats for line in repeated):
            return
        if not self.ordered:
            Random(most).shuffle(repeated)
        for partition, some in _by_partition(repeated):
            if partition not in self.held or not self.ordered:
                self.paper.write(partition, [line.text for line in some])

    def _write(self, partition: int, lines: Sequence[LogLine]) -> None:
        self.arrived.setdefault(partition, []).extend(lines)
        self.paper.write(partition, [line.text for line in lines])


def _by_partition(lines: Sequence[LogLine]) -> Iterator[tuple[int, list[LogLine]]]:
    """Yields runs of lines of one partition, in their order: partitions may come together in a merged shard."""
    for partition, some in groupby(lines, key=lambda line: line.partition):
        yield partition, list(some)
