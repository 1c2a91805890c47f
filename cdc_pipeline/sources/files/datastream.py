"""Decodes the events of Google Datastream: a record of a JSON Lines or Avro file -> a change event."""

import re

from cdc_pipeline.record import TableName, parse_lsn
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Fields, Skipped
from cdc_pipeline.sources.debezium.one_line import Undecodable, printable
from cdc_pipeline.sources.files.record_blocks import read_record
from cdc_pipeline.sources.files.row_format import table_event, time_of

ORDER_FIELDS = 4
"""The time of the change, the log file (MySQL), the position in it (LSN, log position or SCN), and the row in there."""
_OPERATIONS = {
    "INSERT": "c",
    "UPDATE": "u",
    "UPDATE-INSERT": "c",
    "DELETE": "d",
    "UPDATE-DELETE": "d",
}
_LSN_OF_SQL_SERVER = re.compile(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{8}:[0-9A-Fa-f]{4}")


def datastream_event(text: bytes, table: TableName) -> EnvelopeEvent | Skipped:
    """Returns the event of one record. Raises Undecodable.

    The order is the one that Datastream documents: `source_timestamp`, then the place in the source's log. Rows of a
    backfill have no place, and are older than changes of the same time.
    """
    record = read_record(text)
    if record is None:
        return Skipped(kind="blank line")
    metadata, payload = record.get("source_metadata"), record.get("payload")
    if not isinstance(metadata, dict) or not isinstance(payload, dict):
        raise Undecodable("is no event of Datastream: it has no source_metadata or no payload")
    if not _is_named(table, metadata):
        raise Undecodable(f"is of the table {printable(str(metadata['table']))}, in the folder of {table}")
    time = time_of(record.get("source_timestamp"), "source_timestamp")
    if time is None:
        raise Undecodable("has no version: source_timestamp is missing or NULL")
    operation = _operation(record, metadata)
    keys = [name for name in metadata.get("primary_keys") or () if name in payload]
    transaction = metadata.get("tx_id")
    return table_event(
        table,
        operation=operation,
        images=(payload, None) if operation == "d" else (None, payload),
        order=[time, *_place(record, metadata)],
        commit_time=time,
        connector="datastream",
        key={name: payload[name] for name in keys} or None,
        transaction=None if transaction is None else f"tx_id {transaction}",
    )


def _is_named(table: TableName, metadata: Fields) -> bool:
    """Returns whether an event may be of the table. One without `schema` may have it in `table`, before a dot."""
    named = metadata.get("table")
    if named in (None, table.table):
        return True
    is_whole = metadata.get("schema") is None and metadata.get("database") in (None, table.database)
    return is_whole and named == f"{table.schema}.{table.table}"


def _operation(record: Fields, metadata: Fields) -> str:
    if metadata.get("is_deleted") is True:
        return "d"
    change = metadata.get("change_type")
    if change is None and _is_of_backfill(record):
        return "c"
    if not isinstance(change, str) or change not in _OPERATIONS:
        raise Undecodable(f"has the unknown change_type {printable(repr(change))}")
    return _OPERATIONS[change]


def _is_of_backfill(record: Fields) -> bool:
    return "backfill" in str(record.get("read_method"))


def _place(record: Fields, metadata: Fields) -> list[object]:
    """Returns file, position and row in the source's log: zeros for a backfill, which was not read from it."""
    lsn = metadata.get("lsn")
    if isinstance(lsn, str) and _LSN_OF_SQL_SERVER.fullmatch(lsn):
        return [0, int(lsn.replace(":", ""), 16), 0]
    if isinstance(lsn, str) and lsn:
        try:
            return [0, parse_lsn(lsn), 0]
        except ValueError as error:
            raise Undecodable(f"has an lsn that is none: {printable(lsn)!r}") from error
    if metadata.get("log_position") is not None:
        return [metadata.get("log_file") or 0, metadata["log_position"], 0]
    if metadata.get("scn") is not None:
        row = f"{metadata.get('rs_id') or ''} {int(metadata.get('ssn') or 0):010d}"
        return [0, metadata["scn"], row]
    if not _is_of_backfill(record):
        raise Undecodable("has no version: it has no lsn, no log_position and no scn, and is not of a backfill")
    return [0, 0, 0]
