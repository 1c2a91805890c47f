"""Lines and transaction records as Debezium's connector for PostgreSQL writes them, for tests without a broker."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cdc_pipeline.sources.debezium.held_lines import HeldRun, Release
from cdc_pipeline.sources.debezium.partition import Line
from cdc_pipeline.sources.debezium.record_line import RecordLine, record_content
from cdc_pipeline.sources.debezium.transaction_records import TransactionRecord, transaction_record

MINUTE = 60_000_000
"""In the unit of `written`."""
_PER_TRANSACTION = 1_000_000


def record(value: object, place: int, written: int = 0) -> RecordLine:
    content = None if value is None else json.dumps(value).encode()
    return RecordLine(place=place, file="t [0]", number=place, written=written, key=None, value=content, headers={})


def event_value(transaction: int, order: int, *, is_exact: bool = True) -> dict[str, Any]:
    """The event number `order`, from 1, of a transaction. Positions rise with transactions and orders."""
    before = transaction * _PER_TRANSACTION
    source = {"txId": transaction, "lsn": before + order, "schema": "public", "table": "t"}
    sequence = {"sequence": json.dumps([str(before), str(before + order)], separators=(",", ":"))} if is_exact else {}
    block = {"id": f"{transaction}:{before + order}", "total_order": order, "data_collection_order": order}
    return {"op": "c", "after": {"id": 1}, "source": source | sequence, "transaction": block}


def position(transaction: int, order: int) -> int:
    """What `exact_position` returns for the event."""
    before = transaction * _PER_TRANSACTION
    return before << 64 | before + order


def event_line(transaction: int, order: int, place: int = 0, *, written: int = 0, is_exact: bool = True) -> Line:
    raw = record(event_value(transaction, order, is_exact=is_exact), place, written)
    return Line(raw=raw, content=record_content(raw))


def plain_line(place: int = 0) -> Line:
    """A tombstone."""
    raw = record(None, place)
    return Line(raw=raw, content=record_content(raw))


def begin_value(transaction: int) -> dict[str, object]:
    lsn = transaction * _PER_TRANSACTION + 1
    return {"status": "BEGIN", "id": f"{transaction}:{lsn}", "event_count": None, "data_collections": None}


def end_value(transaction: int, counts: Mapping[str, int], *, second: int | None = None) -> dict[str, object]:
    collections = [{"data_collection": name, "event_count": count} for name, count in counts.items()]
    lsn = (transaction + 1) * _PER_TRANSACTION
    total = sum(counts.values())
    ended = {"status": "END", "id": f"{transaction}:{lsn}", "event_count": total, "data_collections": collections}
    return ended if second is None else ended | {"ts_ms": 1_000 * second}


def begin_record(transaction: int, place: int = 0, *, written: int = 0) -> TransactionRecord:
    return _read(begin_value(transaction), place, written)


def end_record(
    transaction: int, place: int = 0, *, written: int = 0, second: int | None = None, **counts: int
) -> TransactionRecord:
    return _read(end_value(transaction, counts, second=second), place, written)


def _read(value: object, place: int, written: int) -> TransactionRecord:
    found = transaction_record(record(value, place, written))
    assert found is not None
    return found


def lines_in(taken: Iterable[tuple[HeldRun, Sequence[Line]]]) -> list[Line]:
    return [line for _, lines in taken for line in lines]


def shown(release: Release | None) -> dict[int, list[str]]:
    """By stream partition, `transaction.order` of each line; `-` for one that is no event."""
    if release is None:
        return {}
    return {number: [_shown(line) for line in lines_in(taken)] for number, taken in release.taken.items()}


def _shown(line: Line) -> str:
    block = None if line.event is None else line.event.value["transaction"]
    return "-" if block is None else f"{str(block['id']).partition(':')[0]}.{block['total_order']}"
