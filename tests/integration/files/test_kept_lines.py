"""Lines in quarantine come back after the fix, and the result is that of a run in which every line could be read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.operations.replay import Replayed
from tests.support.event_files import EventFolder, Row
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql

NARROW = {"name": "public.t", "columns": {"id": "int", "amount": "int", "note": "text"}, "id": ["id"]}
UNORDERED = {"ordered": False, "sequence_by": ["source.lsn"]}
ENORMOUS, MEANT = 3_000_000_000, 30


def envelope(op: str, lsn: int | None, id_: int | None, amount: int = 1, note: str = "n") -> Row:
    place = {"db": "shop", "schema": "public", "table": "t", "txId": lsn} | ({} if lsn is None else {"lsn": lsn})
    image = {"id": id_, "amount": amount, "note": note}
    images = {"before": image, "after": None} if op == "d" else {"before": None, "after": image}
    return {"op": op, **images, "source": place, "ts_ms": 1_700_000_000_000}


def folder(path: Path, store_url: str, table: Row = NARROW, source: Row | None = None) -> EventFolder:
    return EventFolder(folder=path, store_url=store_url, tables=(table,), source=source or {})


def replay_all(events: EventFolder) -> tuple[Replayed, ...]:
    with events.opened() as pipeline:
        return pipeline.replay().run(pipeline.store.quarantine.entries(state=QuarantineState.WAITING))


def why(outcomes: Sequence[Replayed]) -> list[str]:
    return [outcome.why for outcome in outcomes if outcome.state is QuarantineState.WAITING]


LATER: dict[str, list[Row]] = {
    "nothing": [],
    "an update that fits": [envelope("u", 3, 1, amount=7)],
    "another that does not fit": [envelope("u", 3, 1, amount=ENORMOUS)],
    "a delete": [envelope("d", 3, 1)],
    "a delete and an insert": [envelope("d", 3, 1), envelope("c", 4, 1, note="again")],
}


@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
@pytest.mark.parametrize("source", [{}, UNORDERED], ids=["ordered", "unordered"])
def test_a_value_comes_back_when_it_was_mended_whatever_came_after_it(
    postgres: PostgresServer, database: str, tmp_path: Path, source: Row, later: list[Row]
) -> None:
    lines = [envelope("c", 1, 2), envelope("c", 2, 1, amount=ENORMOUS), *later]
    kept = folder(tmp_path / "kept", database, source=source)
    kept.write("0/a.jsonl", *lines)
    kept.consume()
    assert why(replay_all(kept))[0] == "a.jsonl line 2: the value of amount does not fit the lake's int4"
    mending = f"replace(payload::text, '{ENORMOUS}', '{MEANT}')::json"
    run_sql(database, f"UPDATE cdc.quarantine SET payload = {mending}")
    assert why(replay_all(kept)) == []
    with fresh_store(postgres) as clean_url:
        clean = folder(tmp_path / "clean", clean_url, source=source)
        clean.write("0/a.jsonl", *(json.dumps(line).replace(str(ENORMOUS), str(MEANT)) for line in lines))
        clean.consume()
        assert kept.rows("public.t") == clean.rows("public.t")
    assert replay_all(kept) == ()


@pytest.mark.parametrize(
    ("source", "line", "mistake", "mending", "reason"),
    [
        ({}, envelope("c", 2, None), '"id": null', '"id": 1', "the id column id is NULL"),
        ({}, envelope("c", 2, 1), '"op": "c"', '"op": "x"', "has the unknown operation 'x'"),
        (UNORDERED, envelope("c", None, 1), '"txId": null', '"txId": null, "lsn": 2', "source.lsn"),
    ],
    ids=["no id", "undecodable", "no version"],
)
def test_a_line_comes_back_when_its_text_is_mended(
    database: str, tmp_path: Path, source: Row, line: Any, mistake: str, mending: str, reason: str
) -> None:
    events = folder(tmp_path, database, source=source)
    text = json.dumps(line)
    broken = text.replace(mistake, mending) if "unknown" in reason else text
    there, wanted = (mending, mistake) if "unknown" in reason else (mistake, mending)
    assert there in broken
    events.write("0/a.jsonl", envelope("c", 1, 2), broken)
    events.consume()
    (found,) = why(replay_all(events))
    assert reason in found
    old, new = (json.dumps(part)[1:-1] for part in (there, wanted))
    run_sql(database, f"UPDATE cdc.quarantine SET payload = replace(payload::text, '{old}', '{new}')::json")
    assert why(replay_all(events)) == []
    assert [row["id"] for row in events.rows("public.t")] == [1, 2]


@pytest.mark.parametrize("note", ["n", '"n, and\nmore"', '""', '"\xeb"'], ids=["text", "quoted", "empty", "not UTF-8"])
def test_rows_of_csv_without_a_header_come_back_once_their_new_column_is_listed(
    database: str, tmp_path: Path, note: str
) -> None:
    """AWS DMS writes the column of an ALTER TABLE without a word."""
    source = {"kind": "change_files", "format": "dms", "csv": {"header": False}, "time_column": "ts"}
    time, before = "2026-01-01 10:00:00", NARROW | {"columns": {"id": "int", "amount": "int"}}
    old = folder(tmp_path, database, before, source)
    path = old.folder / "events/public/t/2.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(f"I,{time},2,7,{note}\nI,{time},3,7,x,y\nI,{time},4\n".encode("latin1"))
    old.consume()
    unfit = ["has 5 fields, where the file has 4 columns", "has 6 fields", "has 3 fields"]
    found = why(replay_all(old))
    assert [part in text for part, text in zip(unfit, found, strict=True)] == [True] * 3
    new = folder(tmp_path, database, NARROW, source)
    new.write("public/t/3.csv", f"I,{time},5,7,")
    new.consume()
    found = why(replay_all(new))
    is_text = "\xeb" not in note
    assert ["where the file has 5 columns" in text for text in found[-2:]] == [True, True]
    assert ["not fit" in text for text in found[:-2]] == [True] * (not is_text)
    shown = {row["id"]: row["note"] for row in new.rows("public.t")}
    assert shown == {5: None} | ({2: note.strip('"')} if is_text else {})
