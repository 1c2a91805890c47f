"""`cdc quarantine`: what was quarantined is listed, shown, replayed after the fix, or dropped for a reason."""

import re
import shlex

import pytest

from cdc_pipeline.metadata_store.ledger.quarantine import MOST_REPLAYED
from tests.support.command_line import CommandLine, query
from tests.support.doc_pages import text_of
from tests.support.streams import run_sql

OK, ERROR, USAGE, STILL_KEPT = 0, 1, 2, 3
MEND = "UPDATE cdc.quarantine SET payload = replace(payload::text, 'infinity', '9999-12-31')::json"
RUNBOOK = "docs/how-to/quarantine.md"
MANY = MOST_REPLAYED + 10
MULTIPLY = f"""
INSERT INTO cdc.quarantine (table_id, stream_partition, version, start_offset, end_offset, reason,
                            "column", payload, place)
SELECT table_id, stream_partition, version, start_offset, end_offset, reason, "column",
       jsonb_set(payload::jsonb, '{{id}}', to_jsonb((n + 10)::text))::json, split_part(place, '-', 1) || '-' || n + 10
FROM cdc.quarantine, generate_series(1, {MANY}) AS n WHERE quarantine_id = 1 ORDER BY n
"""
MISFIT = "the value of ends does not fit the lake's date"


@pytest.fixture
def kept(cdc: CommandLine) -> CommandLine:
    """Orders 2 and 3 never end, which no date of the lake can say."""
    run_sql(cdc.source_url, "ALTER TABLE orders ADD ends date")
    assert cdc.run("setup-source").exit_code == OK
    never = "INSERT INTO orders VALUES (1, 'one', '2024-01-01'), (2, '[/b]two', 'infinity'), (3, NULL, 'infinity')"
    run_sql(cdc.source_url, never)
    assert cdc.run("consume", "--until-idle").exit_code == OK
    return cdc


def test_an_event_is_listed_without_values_and_shown_whole(kept: CommandLine) -> None:
    first, _ = kept.run("quarantine", "ls", "--json").rows
    assert (first["id"], first["state"], first["column"], first["reason"]) == (1, "waiting", "ends", MISFIT)
    assert first["table"] == f"{kept.name}.public.orders"
    assert "[/b]two" not in str(first)
    (whole,) = kept.run("quarantine", "show", "1", "--json").rows
    values = {name: text for name, text in whole["payload"].items() if not name.startswith("_cdc_")}
    assert values == {"id": "2", "note": "[/b]two", "ends": "infinity"}
    people = kept.run("quarantine", "show", "1")
    assert (people.exit_code, "[/b]two" in people.output) == (OK, True)
    lines = [line.split() for line in people.output.splitlines()]
    assert [line[1] for line in lines if line[:1] == ["id"]] == ["1", "2"], "first the event's own, then the source's"


def test_null_is_shown_as_a_word_and_an_empty_text_as_nothing(kept: CommandLine) -> None:
    empty = """jsonb_set(payload::jsonb, '{note}', '""')::json"""
    run_sql(kept.store_url, f"UPDATE cdc.quarantine SET payload = {empty} WHERE quarantine_id = 1")
    for number, words in (("1", ["note"]), ("2", ["note", "NULL"])):
        lines = kept.run("quarantine", "show", number).output.splitlines()
        assert [line.split() for line in lines if line.startswith("note")] == [words]


def test_an_event_waits_until_it_fits_and_is_replayed_once_or_dropped_for_a_reason(kept: CommandLine) -> None:
    before = kept.state()
    replayed = kept.run("quarantine", "replay", "--all", "--json")
    assert replayed.exit_code == STILL_KEPT
    assert [(row["state"], row["why"]) for row in replayed.rows] == [("waiting", MISFIT)] * 2
    after = kept.state()
    del after["lease"]  # it was taken, and given back
    assert after == before
    (dropped,) = kept.run("quarantine", "drop", "2", "--reason", "a test order", "--json").rows
    assert (dropped["state"], dropped["decision"]) == ("dropped", "a test order")
    run_sql(kept.store_url, MEND)
    for words, exit_code in ((("--all",), OK), (("1",), OK), (("1", "2"), STILL_KEPT)):
        replayed = kept.run("quarantine", "replay", *words, "--json")
        assert (replayed.exit_code, replayed.rows[0]["slice"]) == (exit_code, 2), replayed.errors
    assert query(kept.store_url, "SELECT number, late, rows FROM cdc.slice ORDER BY 1") == [(1, False, 1), (2, True, 1)]
    assert kept.run("quarantine", "ls").output.strip() == "nothing"
    assert [row["id"] for row in kept.run("quarantine", "ls", "--state", "all", "--json").rows] == [1, 2]
    too_late = kept.run("quarantine", "drop", "1", "--reason", "too late")
    assert (too_late.exit_code, "is replayed" in too_late.error) == (ERROR, True)


def test_a_value_that_was_corrected_into_a_number_keeps_no_other_event_from_replay(kept: CommandLine) -> None:
    run_sql(kept.store_url, MEND)
    number = """jsonb_set(payload::jsonb, '{note}', '1.5')::json"""
    run_sql(kept.store_url, f"UPDATE cdc.quarantine SET payload = {number} WHERE quarantine_id = 1")
    (whole,) = kept.run("quarantine", "show", "1", "--json").rows
    assert whole["payload"]["note"] == "1.5"
    replayed = kept.run("quarantine", "replay", "--all", "--json")
    assert (replayed.exit_code, [row["state"] for row in replayed.rows]) == (STILL_KEPT, ["waiting", "replayed"])
    assert replayed.rows[0]["why"] == "note of its payload is 1.5; expected a text in quotes"


def test_many_events_are_listed_in_part_dropped_by_table_and_replayed_in_slices_of_bounded_size(
    kept: CommandLine,
) -> None:
    run_sql(kept.store_url, MULTIPLY, MEND)
    shown = kept.run("quarantine", "ls", "--json")
    assert [row["id"] for row in shown.rows] == list(range(MANY + 3 - 100, MANY + 3))
    assert "only the newest 100 events are shown; --limit shows more" in shown.errors
    assert [row["id"] for row in kept.run("quarantine", "ls", "--limit", "1", "--json").rows] == [MANY + 2]
    dropped = kept.run("quarantine", "drop", "2", "1", "2", "--reason", "a test", "--json").rows
    assert [(row["id"], row["state"]) for row in dropped] == [(2, "dropped"), (1, "dropped")]
    replayed = kept.run("quarantine", "replay", "--all", "--json")
    assert (replayed.exit_code, len(replayed.rows)) == (OK, MANY), replayed.errors
    slices = query(kept.store_url, "SELECT rows FROM cdc.slice WHERE late ORDER BY number")
    assert slices == [(MOST_REPLAYED,), (MANY - MOST_REPLAYED,)]


def test_all_waiting_events_of_a_table_are_dropped_at_once(kept: CommandLine) -> None:
    orders = f"{kept.name}.public.orders"
    for expected in (2, 0):
        dropped = kept.run("quarantine", "drop", "--all", orders, "--reason", "a test", "--json").rows
        assert dropped == [{"table": orders, "dropped": expected}]
    events = kept.run("quarantine", "ls", "--state", "dropped", "--json").rows
    assert [(row["id"], row["decision"]) for row in events] == [(1, "a test"), (2, "a test")]


def test_a_damaged_slice_file_is_listed_by_its_name(kept: CommandLine) -> None:
    assert kept.run("quarantine", "files").output.strip() == "nothing"
    damage = "INSERT INTO cdc.damaged_slice SELECT table_id, number, 'nothing', 'a file', now(), now() FROM cdc.slice"
    run_sql(kept.store_url, damage)
    (row,) = kept.run("quarantine", "files", f"{kept.name}.public.orders", "--json").rows
    assert query(kept.store_url, "SELECT path FROM cdc.slice") == [(row["path"],)]
    assert (row["number"], row["found"], row["expected"]) == (1, "nothing", "a file")


def test_the_commands_of_the_runbook_work_in_their_order(kept: CommandLine) -> None:
    section = text_of(RUNBOOK).split("\n## Events\n")[1].split("\n## ")[0]
    commands = re.findall(r"^(?:\.venv/bin/)?cdc .*$", section, re.MULTILINE)
    ended = [kept.run(*shlex.split(line.replace("ID", "1"))[1:]) for line in commands]
    assert [each.exit_code for each in ended] == [OK, OK, OK, OK, STILL_KEPT, STILL_KEPT, OK], commands
    run_sql(kept.store_url, MEND)
    assert kept.run("quarantine", "replay", "--all").exit_code == OK


def test_wrong_words_are_usage_errors_and_change_nothing(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == OK
    before = cdc.state()
    for words in (
        ("replay",),
        ("show", "7"),
        ("drop", "7", "--reason", " "),
        ("drop", "--reason", "no event"),
        ("drop", "7", "--all", f"{cdc.name}.public.orders", "--reason", "both"),
        ("ls", "shop.public.nothing"),
    ):
        ended = cdc.run("quarantine", *words)
        assert (words, ended.exit_code, ended.output) == (words, USAGE, "")
        assert "Traceback" not in ended.errors
    assert cdc.state() == before
