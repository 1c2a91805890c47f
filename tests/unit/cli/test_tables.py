"""What `cdc` prints for people: within 100 columns, in units that they use."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cdc_pipeline.cli.context import Context
from cdc_pipeline.cli.tables import NARROW, cell, chosen_columns, duration, header, table_of
from cdc_pipeline.errors import UsageError

LAG = {
    "table_id": 7,
    "source_table": "shop.public.orders",
    "state": "live",
    "slices_waiting": 3,
    "rows_waiting": 1_200,
    "lake_as_of": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    "seconds_behind": Decimal("7505.25"),
    "last_claim_error": None,
    "lease_owner": None,
    "stream_alarm": "the slot is gone, and with it what was not read",
    "size_bytes": 3 << 20,
}
HEAD_LINES = 2
HEAVY = ("pyarrow", "numpy", "pydantic", "structlog", "sqlalchemy", "psycopg2", "pyspark")


def printed(rows: list[dict[str, object]], columns: list[str]) -> list[str]:
    file = StringIO()
    Console(file=file, width=NARROW).print(table_of(rows, columns, width=NARROW))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_table_of_many_columns_keeps_those_that_fit_and_leaves_the_empty_ones_out() -> None:
    rows = [LAG, LAG]
    chosen = chosen_columns(rows, None, wide=False, width=NARROW)
    assert chosen == list(LAG)[:7]
    lines = printed(rows, chosen)
    assert max(map(len, lines)) <= NARROW
    assert sum(line.endswith("2 h 5 min") for line in lines) == len(rows)


def test_all_columns_come_when_they_are_asked_for_and_some_by_name() -> None:
    assert chosen_columns([LAG, LAG], None, wide=True, width=NARROW) == list(LAG)
    assert chosen_columns([LAG, LAG], "state, stream_alarm", wide=False, width=NARROW) == ["state", "stream_alarm"]


def test_no_value_is_cut_where_all_columns_do_not_fit_and_stdout_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [f"column_{number}" for number in range(30)]
    rows = [{name: f"{name} of {row} as a value" for name in names} for row in range(2)]
    for chosen in ({"wide": True}, {"columns": ",".join(names)}):
        Context(config=Path("pipeline.yml"), as_json=False).show(rows, **chosen)
        shown = capsys.readouterr().out
        assert [value for row in rows for value in row.values() if value not in shown] == []


def test_a_column_that_nobody_knows_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"there is no column lag; expected some of table_id, source_table"):
        chosen_columns([LAG], "lag", wide=False, width=NARROW)
    with pytest.raises(UsageError, match=r"there is no column lag; expected some of table_id, source_table"):
        chosen_columns([], "lag", wide=False, width=NARROW, known=list(LAG))


def test_a_single_row_of_many_columns_has_a_line_for_each_that_has_a_value() -> None:
    chosen = chosen_columns([LAG], None, wide=False, width=NARROW)
    assert chosen == list(LAG)
    lines = printed([LAG], chosen)
    assert len(lines) == sum(value is not None for value in LAG.values())
    assert any("stream alarm" in line and "the slot is gone" in line for line in lines)


def test_rows_that_do_not_fit_become_one_record_per_block() -> None:
    rows = [LAG, LAG | {"last_claim_error": "[b]" + "no room " * 20}]
    chosen = chosen_columns(rows, None, wide=None, width=NARROW)
    assert chosen == [name for name in LAG if name != "lease_owner"]
    lines = printed(rows, chosen)
    assert max(map(len, lines)) <= NARROW
    assert sum(line.startswith("source table") for line in lines) == len(rows)
    assert any(line.startswith("last claim error  [b]no room") for line in lines)


def test_headers_are_folded_between_words_to_the_width_of_their_column() -> None:
    rows: list[dict[str, object]] = [{"lake_equals_source_as_of": "2026-01-02 03:04:05Z", "rows_withheld": 0}] * 2
    assert printed(rows, list(rows[0]))[:HEAD_LINES] == [
        "lake equals source        rows",
        "as of                 withheld",
    ]


def test_rows_that_fit_stay_a_table_whose_long_texts_are_folded() -> None:
    rows: list[dict[str, object]] = [
        {"table": "shop.public.orders", "rows": number, "problem": "no room " * 20} for number in (3, 12_000)
    ]
    lines = printed(rows, chosen_columns(rows, None, wide=None, width=NARROW))
    assert max(map(len, lines)) <= NARROW
    assert lines[0].split() == ["table", "rows", "problem"]
    assert lines[HEAD_LINES].startswith("shop.public.orders      3  no room")


def test_no_row_and_no_column_are_nothing() -> None:
    assert chosen_columns([], None, wide=False, width=NARROW) == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.00 s"),
        (1.239, "1.24 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3_600, "1 h"),
        (7_505.25, "2 h 5 min"),
        (86_405, "1 d"),
        (200_000, "2 d 7 h"),
        (-61, "-1 min 1 s"),
    ],
)
def test_seconds_are_written_in_their_two_largest_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("name", "head", "words"),
    [
        ("seconds_behind", "behind", "2 h 5 min"),
        ("size_bytes", "size", "3.0 MB"),
        ("lake_as_of", "lake as of", "2026-01-02 03:04:05Z"),
        ("last_claim_error", "last claim error", ""),
        ("rows_waiting", "rows waiting", "1200"),
    ],
)
def test_a_unit_is_named_in_the_cell_and_not_above_it(name: str, head: str, words: str) -> None:
    assert (header(name), cell(name, LAG[name])) == (head, words)


def test_help_waits_for_no_library_that_only_work_needs() -> None:
    asked = f"""
import sys
from cdc_pipeline.cli.application import application
application()
print(sorted(set({HEAVY}) & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_query_waits_for_neither_arrow_nor_the_lake(tmp_path: Path) -> None:
    """Nobody listens at the port of the metadata store: by then everything is imported."""
    server = "postgresql://cdc@127.0.0.1:1"
    document = {
        "name": "shop",
        "lake": "lake",
        "spark": "sc://127.0.0.1:1",
        "metadata_store": f"{server}/store",
        "source": {"kind": "postgres", "url": f"{server}/shop"},
        "tables": [{"name": "shop.public.orders"}],
    }
    (tmp_path / "pipeline.yml").write_text(json.dumps(document))
    asked = f"""
import sys
from cdc_pipeline.cli.application import main
sys.argv = ["cdc", "sql", "lag", "--config", {str(tmp_path / "pipeline.yml")!r}]
try:
    main()
except SystemExit as ended:
    print(ended.code, sorted({{"numpy", "pyarrow", "cdc_pipeline.lake", "cdc_pipeline.wiring"}} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert (found.stdout.strip(), "the metadata store did not answer" in found.stderr) == ("1 []", True), found.stderr


def test_the_version_is_that_of_the_installed_package() -> None:
    command = [sys.executable, "-m", "cdc_pipeline", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"cdc-pipeline {version('cdc-pipeline')}"
