"""Every row of docs/reference/bad-input.md: what comes in gives what the page says."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.errors import SettingsError, SourceError
from cdc_pipeline.settings.file import load_settings
from cdc_pipeline.sources.debezium.rows import line_in
from cdc_pipeline.sources.postgres.session import connect
from tests.support.command_line import query
from tests.support.doc_pages import documented
from tests.support.event_files import EventFolder, Row, events_of

COLUMNS = {"id": "text", "n": "int", "f": "float8"}
TABLE = {"name": "public.t", "columns": COLUMNS, "id": ["id"]}
OTHER = {**TABLE, "name": "public.other"}
DIGITS, BYTES = "@digits", "@bytes"


def envelope(table: str = "t", /, op: object = "c", after: object = None, **changes: Any) -> Row:
    source = {"db": "shop", "schema": "public", "table": table, "lsn": 1, "txId": 1, "ts_ms": 1_700_000_000_000}
    return {"op": op, "before": None, "after": after, "source": source | changes.pop("source", {}), **changes}


def nested(depth: int) -> object:
    found: object = 1
    for _ in range(depth):
        found = [found]
    return found


def written(line: object, number: str = "0") -> bytes:
    if isinstance(line, bytes):
        return line
    return json.dumps(line).replace(f'"{DIGITS}"', number).encode().replace(BYTES.encode(), b"\xff")


def good(id_: str, **more: Any) -> Row:
    return {"id": id_, "n": 1, "f": 1.0, **more}


NO_NAMES: tuple[object, ...] = (["t"], {}, 7, "")
LINES: dict[str, list[bytes]] = {
    "text that is no JSON, or bytes that are no UTF-8": [
        b'{"op": "c", ',
        b"\x00\x01",
        written(envelope(after=good(BYTES))),
        b"[" * 100_000,
    ],
    "JSON that is no object": [b"[1]", b'"c"', b"NaN"],
    "`op` is unknown, a list or an object": [
        written(envelope(op=op, after=good("x"))) for op in ("x", "", ["c"], {"c": 1}, 1, None)
    ],
    "a time before 1970 or after the year 9000": [
        written(envelope(after=good("x"), source={"ts_ms": time})) for time in (-1, 1 << 63, 10**400)
    ],
    "objects and lists nested deeper than 100": [written(envelope(after=good("x", more=nested(900))))],
    "a number that has more than 4,300 digits when it is written out": [
        written(envelope(after=good("x", f=DIGITS)), token)
        for token in ("9" * 4_301, "1E+999999999", "1E-999999999", "1E" + "9" * 4_000, "0." + "1" * 5_000)
    ],
    "a schema whose `fields` are no list of named fields": [
        written({"schema": {"fields": fields}, "payload": envelope(after=good("x"))})
        for fields in (7, [7], [{"field": 7}], [{"field": "after", "fields": 7}], [{"field": "a"}, {"field": "a"}])
    ],
    "`source.table` is a list, in a pipeline with several tables": [
        written(envelope(after=good("x"), source={"table": table})) for table in NO_NAMES
    ],
    "a value that its type cannot hold, also half a surrogate pair": [
        written(envelope(after=good("x", n="two"))),
        written(envelope(after=good("x", n=1 << 31))),
        written(envelope(after=good("\ud800"))),
    ],
    "an id that is NULL or not there": [written(envelope(after={"id": None})), written(envelope(after={"n": 1}))],
    "`txId` beyond 64 bits": [written(envelope(after=good("a"), source={"txId": 1 << 64}))],
    "`lsn` beyond 64 bits, or a nested `sequence`, in ordered files": [
        written(envelope(after=good("b"), source={"lsn": 10**4_000})),
        written(envelope(after=good("c"), source={"sequence": "[" * 900})),
        written(envelope(after=good("d"), source={"sequence": [[["1"]]]})),
    ],
    "NUL in a text": [written(envelope(after=good("e\x00e")))],
    "the same key twice in one object": [written(envelope(after=good("f"))).replace(b'"id":', b'"id": "x", "id":')],
    "an unknown key, or a column that is not listed": [written(envelope(after=good("g", more=1), more=[1]))],
}


def test_every_line_of_the_page_gives_what_the_page_says(tmp_path: Path, database: str) -> None:
    page = documented("A line of a Debezium file")
    assert page.keys() == LINES.keys()
    told = [(line, page[name]) for name, lines in LINES.items() for line in lines]
    path = tmp_path / "events" / "0" / "a.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(line + b"\n" for line, _ in told))
    events = EventFolder(folder=tmp_path, store_url=database, tables=(OTHER, TABLE))
    events.consume()
    reasons = dict(query(database, "SELECT payload ->> '_cdc_line_number', reason FROM cdc.quarantine"))
    for number, (line, words) in enumerate(told, start=1):
        reason = reasons.pop(str(number), "")
        assert bool(reason) == bool(words), (line[:200], reason)
        assert reason.startswith(f"a.jsonl line {number}: ") or not words
        assert [word for word in words if word not in reason] == [], line[:200]
    assert reasons == {}
    assert [row["id"] for row in events.rows("public.t")] == ["a", "b", "c", "d", "e\x00e", "f", "g"]
    with events.opened() as pipeline:
        assert {row["_cdc_transaction"] for row in events_of(pipeline, pipeline.settings.tables[1].table)} == {None, 1}
        kept = pipeline.store.quarantine.entries()
    assert {line_in(entry.payload) for entry in kept} == {line + b"\n" for line, words in told if words}


def schema_of(columns: dict[str, str], key: object = None) -> Row:
    fields = [{"field": name, "type": type_} for name, type_ in columns.items()]
    return {"type": "struct", "fields": [{"field": part, "fields": fields} for part in ("before", "after")]}


UNTYPED = {"name": "public.t", "id": ["id"]}
TABLES: dict[str, tuple[Row, object]] = {
    "events without a schema, of a table without `columns`": (UNTYPED, envelope(after={"id": "a"})),
    "a column of a type that Kafka Connect does not have": (
        UNTYPED,
        {"schema": schema_of({"id": "string", "n": "int33"}), "payload": envelope(after={"id": "a", "n": 1})},
    ),
    "`id`, `update_time` or `partition_by` names no column": (
        {**TABLE, "update_time": "at"},
        envelope(after={"id": "a"}),
    ),
    "a column whose type neither holds the values of its widest earlier type nor the reverse": (
        UNTYPED,
        [
            {"schema": schema_of({"id": "string", "n": type_}), "payload": envelope(after={"id": "a", "n": value})}
            for type_, value in (("int32", 1), ("string", "b"))
        ],
    ),
    "no `id`, and the events' keys get other columns than they had": (
        {"name": "public.t", "columns": COLUMNS},
        [{"key": dict.fromkeys(names, "a"), "value": envelope(after=good("a"))} for names in (["id"], ["id", "n"])],
    ),
    "`exclude_columns` names a column that the events' schema does not have, or one of the id": (
        {**UNTYPED, "exclude_columns": ["N"]},
        {"schema": schema_of({"id": "string", "n": "int32"}), "payload": envelope(after={"id": "a", "n": 1})},
    ),
    "MySQL or MariaDB: events of a new server, at lower places in its log than those before": (
        {"name": "public.t", "columns": COLUMNS},
        [
            envelope(after=good("a"), source={"lsn": None, "server_id": server, "file": f"bin.{file}", "pos": 4})
            for server, file in ((1, "000150"), (2, "000003"))
        ],
    ),
    "a column that begins with `_cdc_`": (
        UNTYPED,
        {"schema": schema_of({"id": "string", "_cdc_n": "int32"}), "payload": envelope(after={"id": "a"})},
    ),
    "columns whose names differ in capital letters alone": (
        UNTYPED,
        {"schema": schema_of({"id": "string", "ID": "int32"}), "payload": envelope(after={"id": "a"})},
    ),
    "an update or delete of a table without an id, without the whole old row": (
        {"name": "public.t", "columns": COLUMNS},
        envelope(op="u", after=good("a")),
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_fault_of_one_table_stops_that_table_alone(tmp_path: Path, database: str, name: str) -> None:
    page = documented("A table")
    assert page.keys() == TABLES.keys()
    table, found = TABLES[name]
    lines = found if isinstance(found, list) else [found]
    events = EventFolder(folder=tmp_path, store_url=database, tables=(table, OTHER))
    events.write("0/a.jsonl", envelope("other", after=good("1")), *lines, envelope("other", after=good("2")))
    events.consume()
    assert [row["id"] for row in events.rows("public.other")] == ["1", "2"]
    ((stopped, reason),) = query(
        database, "SELECT t.table_name, q.reason FROM cdc.quarantine q JOIN cdc.source_table t USING (table_id)"
    )
    assert stopped == "t"
    assert page[name]
    assert all(word in reason for word in page[name])


@pytest.mark.parametrize(
    ("source", "kept"), [({}, 0), ({"ordered": False, "sequence_by": ["source.lsn"]}, 1)], ids=["in order", "in any"]
)
def test_a_truncate_before_the_id_is_known_waits_where_older_rows_may_follow(
    tmp_path: Path, database: str, source: Row, kept: int
) -> None:
    table = {"name": "public.t", "columns": COLUMNS}
    events = EventFolder(folder=tmp_path, store_url=database, tables=(table,), source=source)
    events.write("0/a.jsonl", envelope(op="t"), {"key": {"id": "a"}, "value": envelope(after=good("a"))})
    events.consume()
    assert sum("its id is not known yet" in row["reason"] for row in events.quarantined()) == kept


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_out(path: Path) -> None:
    (path.parents[2] / "outside").write_bytes(written(envelope(after=good("a"))) + b"\n")
    path.symlink_to(path.parents[2] / "outside")


def a_bad_name(path: Path) -> None:
    (path.parent / os.fsdecode(b"\xff.jsonl")).touch()


def another_file(path: Path) -> None:
    begun = path.with_name("a.jsonl")
    begun.write_bytes(written(envelope(after=good("other"))) + b"\n" + begun.read_bytes())


FILES: dict[str, Callable[[Path], object]] = {
    "a folder under the name of a file": a_folder,
    "a FIFO, a socket or a device under the name of a file": os.mkfifo,
    "a symbolic link that leaves `source.path`": a_link_out,
    "a symbolic link to itself, or a file that may not be read": lambda path: path.symlink_to(path),
    "a name that is no printable UTF-8": a_bad_name,
    "a file that was replaced, also by a longer one": another_file,
    "a file that is gone while lines of it are to be read": lambda path: path.with_name("a.jsonl").unlink(),
    "a name before one that was begun": lambda path: path.with_name("0.jsonl").touch(),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read_on_is_refused_and_nothing_is_registered(
    tmp_path: Path, database: str, name: str
) -> None:
    page = documented("A file")
    assert page.keys() == FILES.keys()
    events = EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,))
    events.write("0/a.jsonl", envelope(after=good("1")))
    events.consume()
    before = registered(database)
    FILES[name](tmp_path / "events" / "0" / "b.jsonl")
    with pytest.raises(SourceError) as found:
        events.consume()
    assert page[name]
    assert all(word in str(found.value) for word in page[name])
    assert registered(database) == before
    ((alarm,),) = query(database, "SELECT alarm FROM cdc.stream_partition")
    assert page[name][0] in alarm


def registered(database: str) -> list[tuple[Any, ...]]:
    """What is registered of the stream: slices, files that were begun, and how far it was read."""
    return [
        *query(database, "SELECT number, path FROM cdc.slice ORDER BY slice_id"),
        *query(database, "SELECT number, name FROM cdc.source_file ORDER BY number"),
        *query(database, "SELECT next_offset, last_position FROM cdc.stream_partition"),
    ]


def store_url(path: Path) -> None:
    del path
    connect("postgresql://u:p@ss@h/d")


def text(content: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content)


ALIASES = "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcde", "bcdef", strict=True))
SETTINGS: dict[str, list[Callable[[Path], object]]] = {
    "a folder or a FIFO as `pipeline.yml`": [a_folder, os.mkfifo],
    "text that is no UTF-8": [text(b"name: \xff")],
    "text that is no YAML": [text("name: ["), text("url: *secret"), text("\tname: x")],
    "aliases that write out more than 200,000 values": [text("a: &a [x, x, x]\n" + ALIASES)],
    "lists or mappings nested deeper than 50": [text("[" * 3_000), text("{a: " * 3_000)],
    "a number of more than 18 digits": [text("name: " + "9" * 5_000)],
    "a value of more than 4,000 characters, a file of more than 4 MiB": [text("name: " + "x" * 4_001)],
    "a URL that cannot be read": [store_url],
}


def made_and_read(path: Path, make: Callable[[Path], object]) -> None:
    make(path)
    load_settings(path, {})


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_cannot_be_read_are_refused(tmp_path: Path, name: str) -> None:
    page = documented("pipeline.yml")
    assert page.keys() == SETTINGS.keys()
    for number, make in enumerate(SETTINGS[name]):
        path = tmp_path / str(number) / "pipeline.yml"
        path.parent.mkdir()
        with pytest.raises(SettingsError) as found:
            made_and_read(path, make)
        assert page[name]
        assert all(word in str(found.value) for word in page[name])
