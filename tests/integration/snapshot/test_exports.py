"""A table that begins with exported files: changes after the export are applied to it, and those before never are."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cdc_pipeline.errors import SnapshotError, UsageError
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline
from snapshot.wiring import export_at
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.faults import first_and_last
from tests.crash.steps import SNAPSHOT_TO_STAGING, STAGING_TO_LAKE, lethal
from tests.crash.world import apply_all, take_snapshot
from tests.support.change_files import csv_text, json_lines, parquet_bytes
from tests.support.exports import WRITERS, ExportedTables, lake_rows, named
from tests.support.pipelines import consume, set_up_and_consume
from tests.support.streams import run_sql

Rows = dict[int, dict[str, Any]]
ORDERED = {"format": "upserts", "order_by": ["n"], "operation_column": "op"}
DMS = {"format": "dms", "folder": "{schema}/{table}", "time_column": "ts"}
ORDERS = named("orders")
POSITIONS = (0, 1, 17, 30, 40)
"""Before, between and behind 40 changes."""
PUBLISHED = ("published", 0)
NO_EXPORTS: tuple[tuple[Mapping[str, str], str], ...] = (
    ({}, "holds no file"),
    ({"_SUCCESS": ""}, "holds no file"),
    ({"a.csv": "id\n", "b.jsonl": "{}\n"}, r"holds files of several formats: \.csv, \.jsonl"),
    ({"a.dat": "id\n"}, r"the file a\.dat below .* has a name that says no format"),
)
NO_ID = ("name,amount\nAda,1.50\n", r"the file a\.csv has no column id; it has name, amount")
NO_AMOUNT = ("id,name\n1,Ada\n", r"the file a\.csv has no column amount; it has id, name")


def history(chance: Random, count: int) -> list[dict[str, Any]]:
    """Changes of a few ids, numbered from 1."""
    return [
        {
            "op": chance.choice("UUUD"),
            "n": number,
            "id": chance.randrange(8),
            "name": f"of change {number}",
            "amount": f"{number}.50",
        }
        for number in range(1, count + 1)
    ]


def rows_after(changes: Sequence[Mapping[str, Any]]) -> Rows:
    """The reference: the last change of an id decides."""
    rows: Rows = {}
    for change in changes:
        rows.pop(change["id"], None)
        if change["op"] != "D":
            rows[change["id"]] = {name: change[name] for name in ("id", "name", "amount")}
    return rows


def shown(pipeline: Pipeline, table: TableName = ORDERS) -> list[tuple[int, str, str]]:
    return [(row["id"], row["name"], str(row["amount"])) for row in lake_rows(pipeline, table)]


def texts(rows: Rows) -> list[tuple[int, str, str]]:
    return [(row["id"], row["name"], row["amount"]) for _, row in sorted(rows.items())]


def take(pipeline: Pipeline, place: Path | str, as_of: str, table: TableName = ORDERS) -> tuple[str, int]:
    """The state in which the snapshot ended, and how many rows it withheld."""
    (taken,) = take_snapshot(pipeline, [table], export=export_at(str(place), as_of))
    return taken.state, pipeline.store.snapshot_history.withheld(taken.snapshot_id)


@pytest.mark.parametrize("is_running", [False, True])
def test_an_export_and_the_changes_after_it_are_all_changes(
    tmp_path: Path, store_url: str, *, is_running: bool
) -> None:
    """Rows of the export say so, and stay where no later change touches them: earlier ones never overwrite them."""
    chance = Random(19)
    tables = ExportedTables(
        folder=tmp_path, store_url=store_url, source=ORDERED, tables=[f"t{position}" for position in POSITIONS]
    )
    expected: dict[str, Rows] = {}
    for position, (suffix, write) in zip(POSITIONS, [*WRITERS.items()] * 2, strict=False):
        changes = history(chance, POSITIONS[-1])
        exported = {id_: row | {"name": "of the export"} for id_, row in rows_after(changes[:position]).items()}
        exported |= {90 + part: {"id": 90 + part, "name": "of the export", "amount": "0.50"} for part in range(2)}
        for part in range(2):
            content = [row for id_, row in exported.items() if id_ % 2 == part]
            tables.write(f"export/{position}/part-{part}.{suffix}", write(content))
        later = changes[position:]
        touched = {change["id"] for change in later}
        kept = {id_: row for id_, row in exported.items() if id_ not in touched}
        expected[f"t{position}"] = kept | rows_after(later)
        chance.shuffle(changes)
        for number in range(0, len(changes), 15):
            tables.write(f"files/t{position}/{number:03}.jsonl", json_lines(changes[number : number + 15]))
    with tables.opened() as pipeline:
        set_up_and_consume(pipeline)
        if is_running:
            apply_all_without_snapshot(pipeline)
        for position in POSITIONS:
            as_of = str(position) if position else "start"
            assert take(pipeline, tmp_path / f"export/{position}", as_of, named(f"t{position}")) == PUBLISHED
        apply_all(pipeline)
        assert {name: shown(pipeline, named(name)) for name in tables.tables} == {
            name: texts(rows) for name, rows in expected.items()
        }


def apply_all_without_snapshot(pipeline: Pipeline) -> None:
    results = pipeline.slice_runs().apply(pipeline.table_names())
    assert [result.error for result in results if result.error is not None] == []


def test_full_load_and_changes_of_dms_are_the_source(tmp_path: Path, store_url: str) -> None:
    """They lie in one folder. What changed while the full load ran is in both."""
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=DMS)
    load = [{"ts": "2026-01-01 10:00:00", "id": id_, "name": f"row {id_}", "amount": "1.50"} for id_ in range(1, 6)]
    tables.write("files/public/orders/LOAD00000001.csv", csv_text(load[:3]))
    tables.write("files/public/orders/LOAD00000002.csv", csv_text(load[3:]))
    changes = [
        {"Op": "I", "ts": "2026-01-01 10:00:01", "id": 5, "name": "row 5", "amount": "1.50"},
        {"Op": "U", "ts": "2026-01-01 10:00:02", "id": 1, "name": "changed", "amount": "2.50"},
        {"Op": "D", "ts": "2026-01-01 10:00:03", "id": 2, "name": None, "amount": None},
    ]
    tables.write("files/public/orders/20260101-100001000.csv", csv_text(changes))
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
        assert take(pipeline, f"{tmp_path}/files/public/orders/LOAD*", "start") == PUBLISHED
        consume(pipeline)
        apply_all(pipeline)
        found = shown(pipeline)
    assert found == [(1, "changed", "2.50"), *((id_, f"row {id_}", "1.50") for id_ in (3, 4, 5))]


def test_data_partitions_are_staged_at_once(tmp_path: Path, store_url: str) -> None:
    tables = ExportedTables(
        folder=tmp_path, store_url=store_url, source=ORDERED, table={"partition_by": [{"column": "name"}]}
    )
    rows = [{"id": id_, "name": "ab"[id_ % 2], "amount": "1.50"} for id_ in range(4)]
    tables.write("export/rows.parquet", parquet_bytes(rows))
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
        assert take(pipeline, tmp_path / "export", "start") == PUBLISHED
        staged = {
            found.key.rpartition("/")[0].rpartition("/")[2] for found in pipeline.objects.list_prefix("staging-area")
        }
        assert staged == {"_cdc_name_value=a", "_cdc_name_value=b"}
        assert list(pipeline.objects.list_prefix("db-snapshot")) == []
        assert shown(pipeline) == [(row["id"], row["name"], "1.50") for row in rows]


def test_rows_that_do_not_fit_are_quarantined_with_file_and_line_and_can_be_replayed(
    tmp_path: Path, store_url: str
) -> None:
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED)
    tables.write("files/orders/1.jsonl", json_lines([{"op": "D", "n": 9, "id": 9}]))
    tables.write("export/a.csv", "id,name,amount\n1,Ada,1.50\n2,Bob,much\n,nobody,1.50\n4\n5,Eve,5.50\n")
    with tables.opened() as pipeline:
        set_up_and_consume(pipeline)
        assert take(pipeline, tmp_path / "export/a.csv", "3") == ("published", 3)
        entries = pipeline.store.quarantine.entries(state=QuarantineState.WAITING)
        assert [entry.reason for entry in entries] == [
            "a.csv row 2: the value of amount does not fit the lake's numeric(12,2)",
            "a.csv row 3: the id column id is NULL",
            "a.csv row 4: has 1 fields, where the file has 3 columns",
        ]
        run_sql(store_url, "UPDATE cdc.quarantine SET payload = replace(payload::text, 'much', '2.50')::json")
        outcomes = pipeline.replay().run(pipeline.store.quarantine.entries(ids=[entries[0].quarantine_id]))
        assert [outcome.why for outcome in outcomes if outcome.why] == []
        apply_all(pipeline)
        assert shown(pipeline) == [(1, "Ada", "1.50"), (2, "Bob", "2.50"), (5, "Eve", "5.50")]
        tables.write("export/b.csv", "id,name,amount\n1,Ada,1.50\n")
        assert take(pipeline, tmp_path / "export/b.csv", "2") == PUBLISHED
        assert pipeline.store.quarantine.entries(state=QuarantineState.WAITING) == ()


def test_bad_input_is_one_error_that_changes_nothing(tmp_path: Path, store_url: str) -> None:
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED)
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
        before = pipeline.store.tables.table(ORDERS)
        for number, (files, message) in enumerate(NO_EXPORTS):
            for name, content in files.items():
                tables.write(f"export/{number}/{name}", content)
            with pytest.raises(SnapshotError, match=message):
                take(pipeline, tmp_path / f"export/{number}", "1")
        tables.write("export/a.csv", "id,name,amount\n")
        for as_of in ("", "x" * 2_000):
            with pytest.raises(UsageError, match="is no position of the source"):
                take(pipeline, tmp_path / "export/a.csv", as_of)
        tables.write("files/orders/1.jsonl", json_lines([{"op": "U", "n": 50, "id": 1}]))
        consume(pipeline)
        before = pipeline.store.tables.table(ORDERS)
        for as_of, why in (("zz", "begins with a text, and the events"), ("1,2", "is no position of the source")):
            with pytest.raises(UsageError, match=why):
                take(pipeline, tmp_path / "export/a.csv", as_of)
        assert pipeline.store.snapshots.active_snapshot(before.table_id) is None
        for content, message in (NO_ID, NO_AMOUNT):
            tables.write("export/a.csv", content)
            (taken,) = take_snapshot(pipeline, [ORDERS], export=export_at(str(tmp_path / "export/a.csv"), "1"))
            assert (taken.state, re.search(message, taken.error or "") is not None) == ("failed", True)
        assert pipeline.store.tables.table(ORDERS) == before
        for content in ("", "id,name,amount\n"):
            tables.write("export/a.csv", content)
            assert take(pipeline, tmp_path / "export/a.csv", " 1 ") == PUBLISHED


def test_a_snapshot_of_files_that_is_killed_at_any_step_is_taken_when_it_is_run_again(
    tmp_path: Path, store_url: str
) -> None:
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED)
    changes = history(Random(7), 30)
    tables.write("files/orders/1.jsonl", json_lines(changes))
    tables.write("export/a.jsonl", json_lines([*rows_after(changes[:10]).values()]))
    with tables.opened(failpoint := Failpoint()) as pipeline:
        set_up_and_consume(pipeline)
        failpoint.recorded.clear()
        assert take(pipeline, tmp_path / "export", "10") == PUBLISHED
    others = {"position.hold", "schema.record", "snapshot_file.put", "source.copy"}
    expected = (SNAPSHOT_TO_STAGING | STAGING_TO_LAKE) - others
    for site in first_and_last(lethal(failpoint.recorded, expected)):
        with pytest.raises(Crash), tables.opened(Failpoint(site)) as pipeline:
            take(pipeline, tmp_path / "export", "10")
        run_sql(
            store_url,
            "UPDATE cdc.lease SET expires_at = clock_timestamp() WHERE expires_at > clock_timestamp()",
            "UPDATE cdc.snapshot_task SET lease_expires_at = clock_timestamp() WHERE state = 'claimed'",
        )
        with tables.opened() as pipeline:
            assert take(pipeline, tmp_path / "export", "10") == PUBLISHED
            apply_all(pipeline)
            assert shown(pipeline) == texts(rows_after(changes)), site


@pytest.mark.parametrize("reads", [0, 1], ids=["before it is checked", "before it is copied"])
def test_a_file_that_changes_while_the_snapshot_is_taken_fails_it(tmp_path: Path, store_url: str, reads: int) -> None:
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED)
    path, steps = tables.write("export/a.csv", "id,name,amount\n1,Ada,1.50\n"), list[str]()

    def rewrite(name: str, moment: Moment) -> None:
        if moment is Moment.AFTER and name in ("snapshot_task.add", "source_file.read"):
            steps.append(name)
        if steps[-1 - reads :] == ["snapshot_task.add", *["source_file.read"] * reads]:
            path.write_text("id,name,amount\n1,Eve,1.50\n2,Ada,1.50\n")

    with tables.opened(rewrite) as pipeline:
        pipeline.source_setup().set_up()
        (taken,) = take_snapshot(pipeline, [ORDERS], export=export_at(str(path), "1"))
    is_named = re.search(r"the file a\.csv below .* was written again", taken.error or "") is not None
    assert (taken.state, is_named) == ("failed", True)


def test_apply_waits_for_a_snapshot_of_files_that_is_under_way(tmp_path: Path, store_url: str) -> None:
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED)
    tables.write("files/orders/1.jsonl", json_lines(history(Random(1), 3)))
    tables.write("export/a.csv", "id,name,amount\n77,Ada,1.50\n")
    with tables.opened() as pipeline:
        set_up_and_consume(pipeline)
    with pytest.raises(Crash), tables.opened(at("snapshot_task.finish")) as pipeline:
        take(pipeline, tmp_path / "export", "start")
    run_sql(store_url, "UPDATE cdc.lease SET expires_at = clock_timestamp()")
    with tables.opened() as pipeline:
        (result,) = pipeline.slice_runs().apply([ORDERS])
        assert (result.error, pipeline.lake.read_fence(pipeline.lake_table(ORDERS))) == (None, None)


def at(name: str) -> Failpoint:
    return Failpoint(Site(name, Moment.AFTER, 1))


def die_after(tables: ExportedTables, name: str) -> None:
    """Takes a snapshot of the folder `export` by a process that dies after a step, until its leases have expired."""
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
    with pytest.raises(Crash), tables.opened(at(name)) as pipeline:
        take(pipeline, tables.folder / "export", "start")
    run_sql(tables.store_url, "UPDATE cdc.lease SET expires_at = clock_timestamp()")


def test_another_export_is_refused_while_one_is_under_way(tmp_path: Path, store_url: str) -> None:
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED)
    tables.write("export/a.csv", "id,name,amount\n77,Ada,1.50\n")
    die_after(tables, "lake_table.create")
    with tables.opened() as pipeline:
        with pytest.raises(SnapshotError, match=r"another snapshot of shop\.public\.orders is under way"):
            take(pipeline, tmp_path / "export", "1")
        assert take(pipeline, tmp_path / "export", "start") == PUBLISHED
