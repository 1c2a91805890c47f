"""What history tables hold, in a form that tests can write down, and snapshots that begin and follow them."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.areas import staging_prefix
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.ledger_values import PublishedTable
from cdc_pipeline.lake.protocol import Compaction, Lake, LakePublication, LakeTable, always
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import DELETED, END_VERSION, VERSION, Column, TableSchema
from cdc_pipeline.types import arrow_schema
from tests.support.lake import NOW, PEOPLE, commit_time, lake_table_rows, version
from tests.support.reference.model import Event

Span = tuple[Any, int, int | None]
"""The name that a row had, and the numbers of the versions from which and to which it had it."""
HistoryCase = tuple[Sequence[Sequence[Event]], Mapping[int, Mapping[int, list[Span]]]]
"""The events of each claim, and number of a claim -> id -> what the history has of it from that claim on."""
PEOPLE_OF_CASES = TableSchema(
    columns=(*PEOPLE.columns[1:], Column(name="case", type="text"), Column(name="id", type="int8")), key=("case", "id")
)
"""For cases that share the claims of one table: the name of its case is part of each id."""


def side_by_side(cases: Mapping[str, HistoryCase]) -> Iterator[tuple[list[Event], dict[Any, list[Span]] | None]]:
    """By claim: the events that all cases have in it, and what the history then has, once all cases say it."""
    first = max(min(wanted) for _, wanted in cases.values())
    for number in range(1, max(first, *(len(claims) for claims, _ in cases.values())) + 1):
        now = {name: events for name, (claims, _) in cases.items() for events in claims[number - 1 : number]}
        wanted = {
            (name, id_): periods
            for name, (_, by_claim) in cases.items()
            if number >= first
            for id_, periods in by_claim[max(each for each in by_claim if each <= number)].items()
        }
        yield [_in_case(name, each) for name, events in now.items() for each in events], wanted or None


def _in_case(name: str, each: Event) -> Event:
    return replace(each, id=(name, *each.id), old_id=(name, *each.old_id) if each.old_id else ())


def spans(store: ObjectStore, table: LakeTable) -> dict[Any, list[Span]]:
    """By id, oldest first."""
    found: dict[Any, list[Span]] = {}
    rows = [row for row in lake_table_rows(store, history_of(table)) if not row[DELETED]]
    for row in sorted(rows, key=lambda each: each[VERSION]):
        ids = [row[name] for name in table.schema.key]
        end = None if row[END_VERSION] is None else number_of(row[END_VERSION])
        found.setdefault(ids[0] if len(ids) == 1 else tuple(ids), []).append(
            (row["name"], number_of(row[VERSION]), end)
        )
    return found


def number_of(version: str) -> int:
    return int(version.partition("-")[0], 16)


def put_rows(store: ObjectStore, table: LakeTable, name: str, people: Sequence[tuple[Any, ...]]) -> str:
    """The key of a file with these rows of the source."""
    rows = [dict(zip(table.schema.names, each, strict=True)) for each in people]
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(table.schema)), content)
    key = f"{staging_prefix(table.name, name)}/rows.parquet"
    store.put_if_absent(key, content.getvalue())
    return key


def taken(
    lake: Lake,
    store: ObjectStore,
    table: LakeTable,
    people: Sequence[tuple[Any, ...]],
    at: int | str,
    fence: int,
    replaces: int | None = None,
    name: str = "",
) -> LakePublication:
    """A snapshot of this content, `at` a position behind the slices up to `fence`, or its version. It is hidden."""
    name, cutoff = name or f"s{at}", at if isinstance(at, str) else version(at)
    key = put_rows(store, table, name, people)
    lake.create_table(table, snapshot_id=name)
    work = Compaction(snapshot_id=name, attempt="1", staged_keys=(key,), target_files=1, version=cutoff)
    files = lake.compact(table, work)
    known = PublishedTable(
        table_uuid=UUID(int=1),
        source_oid=16_400,
        stream={},
        settings={},
        schema=table.schema,
        snapshot_id=name,
        fence_number=fence,
        cutoff_offset="",
        cutoff_version=cutoff,
        cutoff_time=commit_time(cutoff),
        rows=len(people),
        files=len(files),
        bytes=0,
    )
    return LakePublication(snapshot_id=name, files=files, fence_number=fence, table=known, replaces=replaces)


def publish(
    lake: Lake,
    store: ObjectStore,
    table: LakeTable,
    people: Sequence[tuple[Any, ...]],
    at: int | str,
    fence: int,
    replaces: int | None = None,
    name: str = "",
    *,
    may_commit: Callable[[], None] = always,
) -> None:
    lake.publish(table, taken(lake, store, table, people, at, fence, replaces, name), may_commit=may_commit)


def with_properties(log: DeltaLog, properties: Mapping[str, str]) -> None:
    """A commit of a user that describes the table, and sets properties of it."""
    latest = log.latest_version() or 0
    metadata = log.metadata(latest)
    configuration = {**metadata["configuration"], **properties}
    info = {"commitInfo": {"timestamp": int(NOW.timestamp() * 1000)}}
    log.append(latest + 1, [info, {"metaData": {**metadata, "description": "people", "configuration": configuration}}])
