"""Reads the records of Debezium's transaction topic, and the transaction of an event."""

import re
from collections.abc import Mapping

import msgspec

from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent
from cdc_pipeline.sources.debezium.one_line import Undecodable, parsed_json
from cdc_pipeline.sources.debezium.record_line import RecordLine
from cdc_pipeline.sources.debezium.versions import is_exact, source_position

_MILLISECONDS = 1_000
_POSTGRES_ID = re.compile(r"([0-9]+):[0-9]+")


class TransactionRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A BEGIN or an END. `place`: its offset. `written`: the record's time, in microseconds since 1970.

    `second`: when the transaction was committed, in seconds since 1970; 0 if the record does not say it. `counts`: the
    number of events of each data collection, empty for a BEGIN.
    """

    place: int
    written: int
    second: int
    transaction: str
    is_end: bool
    counts: Mapping[str, int]


def transaction_record(raw: RecordLine) -> TransactionRecord | None:
    """Returns a record of the transaction topic; None for a tombstone. Raises Undecodable for any other record."""
    if raw.value is None:
        return None
    try:
        document = parsed_json(raw.value.decode())
    except UnicodeDecodeError as error:
        raise Undecodable(f"is no JSON: {error}") from error
    value = document["payload"] if isinstance(document, dict) and "payload" in document else document
    status, name = (value.get("status"), value.get("id")) if isinstance(value, dict) else (None, None)
    if status not in ("BEGIN", "END") or not isinstance(name, str):
        raise Undecodable("is neither the BEGIN nor the END of a transaction")
    return TransactionRecord(
        place=raw.place,
        written=raw.written,
        second=(_whole(value.get("ts_ms")) or 0) // _MILLISECONDS,
        transaction=transaction_name(name),
        is_end=status == "END",
        counts=_counts(value.get("data_collections")) if status == "END" else {},
    )


def transaction_name(text: str) -> str:
    """Returns what the ids of one transaction have in common.

    Debezium writes an id of PostgreSQL as `transaction:LSN`, with the LSN of the event, of the BEGIN or of the END.
    """
    of_postgres = _POSTGRES_ID.fullmatch(text)
    return text if of_postgres is None else of_postgres[1]


def transaction_of(event: EnvelopeEvent) -> tuple[str, int] | None:
    """Returns the name of the event's transaction, and the event's number in it: 0 if the event does not show it.

    Returns None for an event without a transaction block, and for a row that a snapshot read.
    """
    block = event.value.get("transaction")
    if not isinstance(block, dict) or block.get("id") is None or event.transaction is None:
        return None
    return transaction_name(str(block["id"])), _whole(block.get("total_order")) or 0


def exact_position(event: EnvelopeEvent) -> int:
    """Returns the event's position in the source's log if positions rise with every transaction, otherwise 0."""
    return source_position(event) if is_exact(event) else 0


def _counts(collections: object) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in collections if isinstance(collections, list) else ():
        name, count = (
            (each.get("data_collection"), _whole(each.get("event_count"))) if isinstance(each, dict) else (0, 0)
        )
        if not isinstance(name, str) or count is None:
            raise Undecodable("is an END whose data_collections have no names and counts")
        found[name] = found.get(name, 0) + count
    return found


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    return value if type(value) is int and value >= 0 else None
