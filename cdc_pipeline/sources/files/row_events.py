"""Turns blocks of rows with an operation into change events, column by column. Other rows are decoded line by line."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from cdc_pipeline.record import OLD_ID_PREFIX, VERSION, Operation
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.change_files import ChangeFilesSource
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.field_versions import row_place
from cdc_pipeline.sources.debezium.memory import RowsLike
from cdc_pipeline.sources.debezium.one_line import LineRefused, attempt
from cdc_pipeline.sources.debezium.partition import Content, Line
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.sources.debezium.versions import (
    DELETE_RANK,
    UPSERT_RANK,
    place_versions,
    sequence,
    version_in_sequence,
)
from cdc_pipeline.sources.files.dms_octets import Mask
from cdc_pipeline.sources.files.partition_files import RawLine
from cdc_pipeline.sources.files.record_blocks import PlacedBlock, RecordColumns
from cdc_pipeline.sources.files.record_values import Column, json_values, parsed_column, taken
from cdc_pipeline.sources.files.row_format import ORDER, table_event
from cdc_pipeline.sources.files.row_images import (
    DELETE,
    INSERT,
    NO_TIME,
    UPDATE,
    RowImages,
    is_null,
    may_move,
    row_images,
    without_rows,
)
from cdc_pipeline.sources.protocol import Integers, TableEvents
from cdc_pipeline.types import resolve

log = structlog.get_logger()

_OPERATIONS = pa.array([Operation.INSERT.value, Operation.UPDATE.value, Operation.DELETE.value])


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEvents:
    """The events of one block. `times`: per row, in microseconds since 1970; NO_TIME for a row without one.

    `memory`: the encoded `PartitionMemory` of the block's table after each row, or one that holds after all of them.
    `skipped`: counts of rows that change nothing, by kind.
    """

    events: tuple[TableEvents, ...]
    times: Integers
    memory: Sequence[str]
    skipped: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TypedRows:
    """Rows of a block as rows of a slice file. `numbers`: their numbers in the block, rising."""

    like: RowsLike
    numbers: Integers
    times: Integers
    table: pa.Table


class RowBlocks:
    """Decodes blocks of rows of the stream partition `number`. `decode`: decodes one row as a line."""

    def __init__(
        self, *, decoder: DebeziumDecoder, source: ChangeFilesSource, decode: Callable[[RawLine], Content], number: int
    ) -> None:
        self._decoder = decoder
        self._source = source
        self._decode = decode
        self._number = number

    def events(self, placed: PlacedBlock, table: TableSettings, first: int) -> BlockEvents:
        """Returns the events of a block of `table`. `first`: the stream position of its first row.

        A row that cannot be applied becomes an unfit event.
        """
        typed = self._typed_parts(placed, table)
        times, by_line = np.full(placed.block.rows, NO_TIME), np.ones(placed.block.rows, np.bool_)
        for found in typed:
            times[found.numbers], by_line[found.numbers] = found.times, False
        memory, skipped = list[str](), Counter[str]()
        late = self._source.late_by is not None
        in_turn = late or any(found.like.has_horizon for found in typed)
        entries = _entries(typed, placed.written) if in_turn else {}
        for row in range(placed.block.rows) if in_turn else np.flatnonzero(by_line).tolist():
            if row not in entries or isinstance(attempt(entries[row]), LineRefused):
                by_line[row] = True
                decoded = self._decoder.add(self._number, [self._line(placed, row)], first + row)
                times[row] = NO_TIME if decoded.commit_time is None else decoded.commit_time
                skipped.update(decoded.skipped)
            if late:
                memory.append(self._decoder.memory(self._number, table.table).encode())
        return BlockEvents(
            events=(*(self._events(found, by_line, first) for found in typed), *self._decoder.take(self._number)),
            times=times,
            memory=memory or [self._decoder.memory(self._number, table.table).encode()],
            skipped=skipped,
        )

    def _typed_parts(self, placed: PlacedBlock, table: TableSettings) -> Sequence[_TypedRows]:
        """Returns the rows that can be decoded column by column; none if one column has values that nobody expected."""
        found = attempt(lambda: [self._typed(part, placed, table) for part in placed.block.columns()])
        if isinstance(found, LineRefused):
            log.warning("rows are decoded one by one", file=placed.file, found=str(found))
            return []
        return [typed for typed in found if typed is not None]

    def _line(self, placed: PlacedBlock, row: int) -> Line:
        raw = placed.raw_line(row)
        return Line(raw=raw, content=self._decode(raw))

    def _events(self, found: _TypedRows, by_line: Mask, first: int) -> TableEvents:
        kept = ~by_line[found.numbers]
        positions = first + found.numbers[kept]
        return TableEvents(
            table=found.like.layout.table,
            schema=found.like.layout.schema,
            rows=found.table if kept.all() else found.table.filter(pa.array(kept)),
            commit_position=positions,
            stream_partition=np.full(len(positions), self._number, dtype=np.int64),
        )

    def _typed(self, part: RecordColumns, placed: PlacedBlock, table: TableSettings) -> _TypedRows | None:
        """Returns the rows that can be decoded column by column; None if there are none."""
        images = row_images(part.columns, len(part.rows), table=table, source=self._source, written=placed.written)
        like = self._like(images, table)
        if like is None:
            return None
        simple = images.simple & self._is_whole(part, images, like.layout)
        if not simple.any():
            return None
        columns, fits = _typed_columns(images, like.layout)
        chosen = np.flatnonzero(simple & fits)
        if like.sequence_by:
            chosen, versions = self._in_sequence(part, images, like, placed, chosen)
        else:
            versions = place_versions(like.memory.position, placed.place + part.rows[chosen])
        return _TypedRows(
            like=like,
            numbers=part.rows[chosen],
            times=images.times[chosen],
            table=_slice_rows(images, columns, versions, chosen, like.layout),
        )

    def _like(self, images: RowImages, table: TableSettings) -> RowsLike | None:
        event = table_event(
            table.table,
            operation="c",
            images=(None, dict.fromkeys(images.row)),
            order=[],
            commit_time=None,
            connector=self._source.format,
        )
        found = attempt(partial(self._decoder.rows_like, self._number, event, table))
        return None if isinstance(found, LineRefused) else found

    def _is_whole(self, part: RecordColumns, images: RowImages, layout: Layout) -> Mask:
        """Returns the rows that have their id, and cannot change it."""
        key = layout.schema.key
        if layout.schema.is_keyless:
            return np.asarray(images.operations == INSERT)
        if not set(key) <= images.row.keys():
            return np.zeros(len(part.rows), np.bool_)
        may = may_move(part.columns, layout, self._source, len(part.rows))
        return np.asarray((images.operations == INSERT) | ~may)

    def _in_sequence(
        self, part: RecordColumns, images: RowImages, like: RowsLike, placed: PlacedBlock, chosen: Integers
    ) -> tuple[Integers, pa.Array]:
        """Returns the rows that have a version, and their versions. It is that of the row as a line."""
        schema = like.layout.schema
        names = [name for name in schema.names if name in images.row]
        missing = sorted(name for name in schema.names if name not in images.row)
        orders = zip(*(_chosen(part.columns[name], chosen) for name in self._source.order_by), strict=True)
        rows = zip(*(_chosen(images.row[name], chosen) for name in names), strict=True)
        found, versions = list[int](), list[str]()
        for place, operation, order, row in zip(
            chosen.tolist(), images.operations[chosen].tolist(), orders, rows, strict=True
        ):
            values = dict(zip(names, row, strict=True))
            if operation == DELETE:
                values = {name: values[name] for name in schema.key}
            event = {ORDER: {str(number): value for number, value in enumerate(order)}}
            encoded = attempt(partial(sequence, event, like.sequence_by))
            if not isinstance(encoded, LineRefused):
                rank = DELETE_RANK if operation == DELETE else UPSERT_RANK
                content: list[object] = [[values, missing if operation == UPDATE else [], {}]]
                if schema.is_keyless:
                    content.append(row_place(placed.file, placed.line_number(int(part.rows[place]))))
                like.memory.look_at_order(like.layout.table, encoded)
                found.append(place)
                versions.append(version_in_sequence(encoded, rank=rank, content=content))
        return np.array(found, dtype=np.int64), pa.array(versions, pa.string())


def _entries(typed: Sequence[_TypedRows], written: int) -> dict[int, Callable[[], None]]:
    """Returns a call per row of a file of the time `written` that enters its version into its table's memory."""
    return {
        number: partial(found.like.enter, version, time, written)
        for found in typed
        for number, version, time in zip(
            found.numbers.tolist(), found.table[VERSION].to_pylist(), found.times.tolist(), strict=True
        )
    }


def _chosen(column: Column, rows: Integers) -> list[object]:
    return json_values(taken(column, rows))


def _typed_columns(images: RowImages, layout: Layout) -> tuple[dict[str, pa.Array], Mask]:
    """Returns the columns of the table, and the rows whose values fit. A delete has its id alone."""
    deletes = images.operations == DELETE
    fits = np.ones(len(deletes), np.bool_)
    columns: dict[str, pa.Array] = {}
    for column in layout.schema.columns:
        found, is_key = images.row.get(column.name), column.name in layout.schema.key
        if found is None:
            columns[column.name] = pa.nulls(len(deletes), resolve(column.type).arrow)
            continue
        parsed = parsed_column(without_rows(found, deletes) if deletes.any() and not is_key else found, column.type)
        columns[column.name] = parsed.values
        if parsed.unfit is not None:
            fits &= ~np.asarray(pc.fill_null(parsed.unfit, fill_value=False))
        if is_key:
            fits &= ~is_null(parsed.values)
    return columns, fits


def _slice_rows(
    images: RowImages, columns: dict[str, pa.Array], versions: pa.Array, chosen: Integers, layout: Layout
) -> pa.Table:
    fields, operations = event_schema(layout.schema), images.operations[chosen]
    missing = [name for name in layout.schema.names if name not in images.row]
    absent = pa.array([None, missing or None], pa.list_(pa.string()))
    own = (
        _OPERATIONS.take(pa.array(operations)),
        versions,
        pa.array(images.times[chosen]).cast(pa.timestamp("us", "UTC")),
        pa.nulls(len(chosen), pa.int64()),
        absent.take(pa.array((operations == UPDATE).astype(np.int64))),
    )
    is_all = len(chosen) == len(images.operations)
    taken = columns if is_all else {name: column.take(pa.array(chosen)) for name, column in columns.items()}
    old_id = {
        OLD_ID_PREFIX + column.name: pa.nulls(len(chosen), resolve(column.type).arrow)
        for column in layout.schema.key_columns
    }
    rest = {**old_id, **taken}
    return pa.table([*own, *(rest[name] for name in fields.names[len(own) :])], fields)
