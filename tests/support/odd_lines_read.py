"""Lines of a file read as the consumer reads them, up to slices and cut files, and what became of each.

As a program it reads many and says what it took: `python -m tests.support.odd_lines_read LINES SEED`.
"""

import json
import logging
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import structlog

from cdc_pipeline.consume.slice_cutter import CUT, CutSlices, SliceCutter
from cdc_pipeline.record import OPERATION, VERSION, Operation, TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.debezium_files import DebeziumFilesSource
from cdc_pipeline.slice_file import write_slice_file
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.partition import PartitionLines
from cdc_pipeline.sources.debezium.rows import LINE_NUMBER, line_in
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.debezium_folders import DebeziumFolders, debezium_order
from cdc_pipeline.sources.files.partition_files import PartitionFiles
from cdc_pipeline.sources.files.source import FileSource
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.known import KnownTable, PartitionProgress
from cdc_pipeline.sources.protocol import TableEvents, UnfitEvent
from cdc_pipeline.steps import no_step
from tests.support.decoding import KeptText
from tests.support.line_fuzz import LineFuzz, recorded_lines
from tests.support.recordings import COLUMNS, PLAIN, WITH_SCHEMA

_START = datetime(2026, 1, 1, tzinfo=UTC)
_ODD = (
    "numeric",
    "interval",
    "hstore",
    "point",
    "bit(4)",
    "numeric[]",
    "timestamptz",
    "date",
    "time",
    "bytea",
    "float4",
)
_UNORDERED = {"ordered": False, "sequence_by": ["source.lsn", "source.sequence"], "late_by": "1d"}
_UNFORESEEN = re.compile("cannot be read: ([A-Za-z]+)")
_IN_A_FILE = 250
_MOST_SECONDS = 1.0


def pipelines() -> list[Settings]:
    """One for each way in which tables know their columns and events their order."""
    odd = dict(zip((name for name in COLUMNS if name != "id"), _ODD, strict=False))
    typed = {"name": "public.orders", "columns": {"id": "text", **odd}, "id": ["id"]}
    tables: list[tuple[Mapping[str, Any], ...]] = [PLAIN, WITH_SCHEMA, (typed, PLAIN[1])]
    return [*(_settings(each, {}) for each in tables), _settings(PLAIN, _UNORDERED)]


def _settings(tables: Sequence[Mapping[str, Any]], source: Mapping[str, Any]) -> Settings:
    return Settings.model_validate(
        {
            "folder": Path("/nowhere"),
            "name": "shop",
            "lake": "lake",
            "source": {"kind": "debezium_files", "path": "events/", **source},
            "tables": [{**table, "name": f"shop.{table['name']}"} for table in tables],
        }
    )


class OddLines:
    """A reader of one file at a time in `folder`."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        assert isinstance(settings.source, DebeziumFilesSource)
        self._source = settings.source
        self._tables = settings.tables
        self._folder = folder

    def read(self, lines: Sequence[bytes]) -> list[tuple[TableName, UnfitEvent]]:
        """What was quarantined. Fails unless every line became rows, was skipped, or is among it once and whole."""
        (self._folder / "a.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        begun: dict[int, str] = {}
        files = PartitionFiles(folder=self._folder, offset=0, begun=begun, begin=lambda _: 1, on_step=no_step)
        stream = self._stream(files)
        cutter = SliceCutter(start=0, commit_time=_START, slice_length=timedelta(days=1), slice_rows=1_000_000)
        stream.send_marker(CUT)
        cuts: list[CutSlices] = []
        events: list[TableEvents] = []
        while (batch := stream.read(timedelta(0))) is not None:
            events += batch.events
            cuts += cutter.add(batch)
        stream.close()
        unfit = [kept for cut in cuts for kept in cut.unfit]
        _check_slices(cuts)
        self._check_all_there(lines, events, unfit)
        return unfit

    def _stream(self, files: PartitionFiles) -> DebeziumStream:
        return DebeziumStream(
            partitions={0: PartitionLines(files)},
            progress={0: PartitionProgress(offset="0" * 16)},
            decoder=DebeziumDecoder(
                tables=DebeziumTables(self._tables, {}),
                sequence_by=self._source.sequence_by,
                last_position={0: {}},
                late_by=self._source.late_by,
            ),
            position=0,
            commit_time=_START,
            folders=lambda: [0],
        )

    def _check_all_there(
        self, lines: Sequence[bytes], events: Sequence[TableEvents], unfit: Sequence[tuple[TableName, UnfitEvent]]
    ) -> None:
        kept = [int(event.payload[LINE_NUMBER] or 0) for _, event in unfit]
        assert len(set(kept)) == len(kept)
        for number, (_, event) in zip(kept, unfit, strict=True):
            assert line_in(event.payload) == lines[number - 1] + b"\n"
            assert not any("\0" in part for part in map(str, event.payload.values()))
            "".join(map(str, event.payload.values())).encode()
            assert event.reason.startswith(f"a.jsonl line {number}: ")
            assert "\0" not in event.reason.encode().decode() + event.column
            assert len(event.reason) < 500
        if not self._source.sequence_by:
            rows = [row for found in events for row in found.rows.select([VERSION, OPERATION]).to_pylist()]
            places = [(int(row[VERSION].rpartition("-")[2], 16) + 1 & 0xFFFF_FFFF, row[OPERATION]) for row in rows]
            applied = [(number, operation) for number, operation in places if number in kept]
            # Of a key change that waits, the delete of the old row is applied.
            assert {operation for _, operation in applied} <= {Operation.DELETE}

    def replay(self, unfit: Sequence[tuple[TableName, UnfitEvent]]) -> None:
        """A line in quarantine is read again in the same way."""
        source = FileSource(
            stream="shop",
            kind=self._source.kind,
            order=debezium_order(self._source),
            tables=self._tables,
            transport=DebeziumFolders(folder=self._folder, on_step=no_step),
        )
        for table, event in unfit:
            known = KnownTable(name=table, source_id=0, key=(), published_as="")
            kept = KeptText(quarantine_id=1, event=event)
            (decoded,) = source.decode_quarantined(known, [kept], columns=(), stream_partitions=[0])
            assert [*decoded.fitting, *decoded.refused] == [1]


def _check_slices(cuts: Sequence[CutSlices]) -> None:
    for cut in cuts:
        assert cut.label.start <= cut.label.end
        for rows in cut.slices.values():
            file = write_slice_file(rows.rows, rows.schema, rows.releases)
            json.dumps([rows.schema.to_json(), file.key_ranges]).encode("ascii")
            assert not any("\0" in name for name in rows.schema.names)


def slow_lines(reader: OddLines, lines: Sequence[bytes]) -> list[bytes]:
    """Of lines that took too long together, those that do alone: by the processor's time, whoever else uses it."""
    found = []
    for line in lines:
        begun = time.process_time()
        reader.read([line])
        if time.process_time() - begun > _MOST_SECONDS:
            found.append(line)
    return found


def main(count: int, seed: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    fuzz = LineFuzz(Random(seed), recorded_lines())
    begun, kept, slowest, reasons = time.monotonic(), 0, 0.0, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        readers = [OddLines(settings, Path(folder)) for settings in pipelines()]
        for number in range(-(-count // _IN_A_FILE)):
            lines = list(fuzz.lines(_IN_A_FILE))
            reader, started = readers[number % len(readers)], time.process_time()
            unfit = reader.read(lines)
            took = time.process_time() - started
            slowest = max(slowest, took)
            if took > _MOST_SECONDS:
                slow = slow_lines(reader, lines)
                assert slow == [], [line[:1_000] for line in slow]
            reader.replay(unfit[:10])
            kept += len(unfit)
            reasons.update(found[0] for _, event in unfit if (found := _UNFORESEEN.findall(event.reason)))
    print(  # noqa: T201 - the program's result
        json.dumps(
            {
                "lines": count,
                "quarantined": kept,
                "unforeseen": reasons,
                "seconds": round(time.monotonic() - begun, 1),
                "slowest_file_seconds": round(slowest, 2),
                "memory_mb": _most_megabytes(),
            }
        )
    )


def _most_megabytes() -> int:
    """Since this program began; what `getrusage` knows may be the memory of whoever started it."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    return int(line) // 1024


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
