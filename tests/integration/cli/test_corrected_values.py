"""Values in quarantine that are corrected by the statements of the page about it, and replayed."""

import json
import subprocess
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.launcher.project import PROJECT
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.settings.installation.state import open_installation, write_document
from tests.integration.cli.test_quarantine import OK, RUNBOOK, STILL_KEPT
from tests.integration.files.test_kept_lines import ENORMOUS, MEANT, envelope, folder, replay_all
from tests.support.command_line import CommandLine, query
from tests.support.doc_pages import blocks
from tests.support.postgres import fresh_store
from tests.support.streams import database_of, run_sql

LOOK, COLUMN, LINE, BYTES, ESCAPED = blocks(RUNBOOK, "sql", "## Correct a value")
(OPEN,) = blocks(RUNBOOK, "bash", "## Correct a value")


def corrected(store_url: str, statement: str) -> int:
    """Runs the statement for the first event; returns how many it changed."""
    with closing(psycopg2.connect(store_url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement.replace("ID", "1"))
        return int(cursor.rowcount)


@pytest.mark.parametrize("is_utf8", [True, False], ids=["UTF-8", "no UTF-8"])
def test_a_column_is_corrected_by_its_text(cdc: CommandLine, *, is_utf8: bool) -> None:
    run_sql(cdc.source_url, "ALTER TABLE orders ADD ends date")
    assert cdc.run("setup-source").exit_code == OK
    run_sql(cdc.source_url, "INSERT INTO orders VALUES (1, 'Mller', 'infinity')")
    assert cdc.run("consume", "--until-idle").exit_code == OK
    if not is_utf8:
        of_other_bytes = r"UPDATE cdc.quarantine SET payload = replace(payload::text, 'Mller', 'M\udcfcller')::json"
        run_sql(cdc.store_url, of_other_bytes)
        assert corrected(cdc.store_url, BYTES) == 1
    assert cdc.run("quarantine", "replay", "1").exit_code == STILL_KEPT
    ((text,),) = query(cdc.store_url, LOOK.replace("ID", "1"))
    assert json.loads(text)["note"] == ("Mller" if is_utf8 else "Müller")
    assert [corrected(cdc.store_url, COLUMN) for _ in range(2)] == [1, 0]
    assert cdc.run("quarantine", "replay", "1").exit_code == OK


def test_a_line_of_events_is_corrected_within_its_text(database: str, tmp_path: Path) -> None:
    events = folder(tmp_path, database)
    events.write("0/a.jsonl", json.dumps(envelope("c", 1, 1, amount=ENORMOUS), separators=(",", ":")))
    events.consume()
    assert corrected(database, LINE) == 1
    assert [outcome.state for outcome in replay_all(events)] == [QuarantineState.REPLAYED]
    assert [row["amount"] for row in events.rows("public.t")] == [MEANT]


def test_a_line_that_is_no_utf8_is_corrected_in_its_escapes(database: str, tmp_path: Path) -> None:
    events = folder(tmp_path, database)
    events.write("0/a.jsonl", envelope("c", 1, 1))
    line = json.dumps(envelope("c", 2, 2, note="Mller")).encode().replace(b"Mller", b"M\xfcller")
    with (tmp_path / "events/0/a.jsonl").open("ab") as file:
        file.write(line + b"\n")
    events.consume()
    assert [outcome.state for outcome in replay_all(events)] == [QuarantineState.WAITING]
    assert corrected(database, ESCAPED) == 1
    assert [outcome.state for outcome in replay_all(events)] == [QuarantineState.REPLAYED]
    assert [row["note"] for row in events.rows("public.t")] == ["n", "Müller"]


def test_psql_opens_the_embedded_store(postgres: PostgresServer, tmp_path: Path) -> None:
    """Here with the server of the tests and its user."""
    installation = open_installation(tmp_path / ".cdc")
    path = installation.home / "installation.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    ports = state["ports"] | {"postgres": postgres.port}
    write_document(path, state | {"ports": ports, "metadata_password": postgres.password})
    (tmp_path / ".venv").symlink_to(PROJECT / ".venv")
    with fresh_store(postgres) as store_url:
        ours = OPEN.replace("-d cdc_metadata -U cdc_metadata", f"-d {database_of(store_url)} -U cdc")
        assert ours != OPEN
        statement = "UPDATE cdc.quarantine SET reason = reason;"
        ended = subprocess.run(
            ["bash", "-c", ours], cwd=tmp_path, input=statement, capture_output=True, text=True, check=False
        )
    assert (ended.returncode, ended.stdout.strip()) == (0, "UPDATE 0"), ended.stderr
