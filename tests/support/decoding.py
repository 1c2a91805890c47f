"""Events as Debezium's connectors write them, read by the real decoder and shown as plain rows."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder, Decoded
from cdc_pipeline.sources.debezium.partition import Line
from cdc_pipeline.sources.debezium.record_line import RecordLine, record_content
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.protocol import TableEvents, UnfitEvent

ORDERS = TableName.parse("shop.public.orders")
PLACEHOLDER = "__debezium_unavailable_value"
Json = Mapping[str, Any]


def orders(**settings: Any) -> TableSettings:
    return TableSettings(**({"name": str(ORDERS)} | settings))


def postgres(op: str, lsn: int, *, before: Any = None, after: Any = None, order: int | None = None) -> dict[str, Any]:
    """An event of a transaction whose number is `lsn`, right behind the commit at `lsn - 5`. `order`: total_order."""
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders", "snapshot": "false"}
    place = {"lsn": lsn, "txId": lsn, "ts_ms": 1_700_000_000_000, "sequence": json.dumps([str(lsn - 5), str(lsn)])}
    block = None if order is None else {"id": f"{lsn}:{lsn}", "total_order": order, "data_collection_order": order}
    return {"before": before, "after": after, "op": op, "source": source | place, "transaction": block}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptText:
    """Implements `QuarantinedText`."""

    quarantine_id: int
    event: UnfitEvent
    snapshot_id: None = None
    created_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    @property
    def stream_partition(self) -> int:
        return self.event.stream_partition

    @property
    def version(self) -> str:
        return self.event.version

    @property
    def payload(self) -> Any:
        return self.event.payload


class Decoding:
    """A decoder and what it made of the records. `registered`: the encoded state of the table, by stream partition."""

    def __init__(
        self,
        *tables: TableSettings,
        partitions: int = 1,
        known: Mapping[TableName, TableSchema] | None = None,
        upserts: Collection[TableName] = (),
        registered: Mapping[int, Mapping[TableName, str]] | None = None,
        horizons: Mapping[TableName, str] | None = None,
    ) -> None:
        self.registered: dict[int, dict[TableName, str]] = {
            number: dict((registered or {}).get(number, {})) for number in range(partitions)
        }
        self.skipped: list[str] = []
        self.events: list[TableEvents] = []
        self._upserts = frozenset(upserts)
        self._places = dict.fromkeys(range(partitions), 0)
        self._position = 0
        self._known = known or {}
        self._tables = tables
        self._horizons = horizons or {}
        self.restart()

    def restart(self) -> None:
        """Goes on with a new decoder from the registered state."""
        tables, partitions = self._tables, len(self.registered)
        without_name = dict.fromkeys(range(partitions), tables[0].table)
        self._decoder = DebeziumDecoder(
            tables=DebeziumTables(tables, self._known, without_name, self._upserts),
            sequence_by=(),
            last_position=self.registered,
            horizons=self._horizons,
            alone=partitions == 1,
        )

    def send(self, *values: Any, key: Any = None, headers: Json | None = None, partition: int = 0) -> Decoded:
        """Reads records of one transaction, all with the same key and headers."""
        return self.send_lines([self._record(each, key, headers, partition) for each in values], partition)

    def send_lines(self, records: Sequence[RecordLine], partition: int = 0) -> Decoded:
        lines = [Line(raw=each, content=record_content(each)) for each in records]
        decoded = self._decoder.add(partition, lines, self._position)
        self._position += len(lines)
        self.skipped += decoded.skipped
        self.events += self._decoder.take(partition)
        for table, state in decoded.last_position.items():
            self.registered[partition][TableName.parse(table)] = state
        return decoded

    def record(self, value: Any, *, key: Any = None, headers: Json | None = None, partition: int = 0) -> RecordLine:
        """The next record, for `send_lines`."""
        return self._record(value, key, headers, partition)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every row, without what is NULL and without its commit time and transaction."""
        hidden = {"_cdc_commit_time", "_cdc_transaction"}
        found = [row for events in self.events for row in events.rows.to_pylist()]
        return [
            {name: value for name, value in row.items() if value is not None and name not in hidden} for row in found
        ]

    @property
    def refused(self) -> list[str]:
        return [unfit.reason for events in self.events for unfit in events.unfit]

    def _record(self, value: Any, key: Any, headers: Json | None, partition: int) -> RecordLine:
        place = self._places[partition]
        self._places[partition] += 1
        deleted = next(iter(self._upserts), None)
        return RecordLine(
            place=place,
            file=f"orders [{partition}]",
            number=place,
            written=1_700_000_000_000_000,
            key=_octets(key),
            value=_octets(value),
            headers=headers or {},
            deleted_rows=deleted,
        )


def _octets(document: Any) -> bytes | None:
    return document if document is None or isinstance(document, bytes) else json.dumps(document).encode()
