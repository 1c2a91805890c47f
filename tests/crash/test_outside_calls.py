"""Every call that reaches outside lies in a named step, so that a test can kill a process there."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.outside_calls import calls_outside_steps, step_names
from tests.crash.steps import ALL, IN_TESTS_ALONE

ROOT = Path(__file__).parents[2]
PLACES = ("cdc_pipeline", "snapshot", "dags", "plugins")
APART = {
    "cdc_pipeline/cli": "what a person asks for is done by the rooms below it",
    "cdc_pipeline/demo": "people who write to a shop",
    "cdc_pipeline/metadata_store/migrations": "one transaction each, inside store.upgrade",
    "cdc_pipeline/object_store": "the object stores, which the steps call",
    "cdc_pipeline/settings/installation": "what one installation remembers; no row goes through it",
    "cdc_pipeline/launcher": "the processes of an installation; no row goes through them",
}
READS_ONLY = "reads, and what was read is nowhere but in memory"
OWN_SESSION = "the state of a session of this process, which ends with it"
IN_A_STEP = "called inside the step "
IMPLEMENTATIONS = {
    "cdc_pipeline/consume/consumer.py:read_cuts": READS_ONLY,
    "cdc_pipeline/lake/checkpoint.py:write_checkpoint": "a folder of this process's own",
    "cdc_pipeline/lake/claim_view.py:drop_all": OWN_SESSION,
    "cdc_pipeline/lake/claim_view.py:keep_sql": IN_A_STEP + "lake_claim.deduplicate",
    "cdc_pipeline/lake/claim_view.py:name": IN_A_STEP + "lake_claim.deduplicate",
    "cdc_pipeline/lake/claim_view.py:name_sql": IN_A_STEP + "lake_claim.deduplicate",
    "cdc_pipeline/lake/claim_view.py:slice_rows": IN_A_STEP + "lake_claim.deduplicate",
    "cdc_pipeline/lake/claim_view.py:truncates_in": IN_A_STEP + "lake_claim.deduplicate",
    "cdc_pipeline/lake/compaction.py:_lake_rows": "plans what snapshot_files.write does",
    "cdc_pipeline/lake/compaction.py:write_files": IN_A_STEP + "snapshot_files.write or lake_files.write",
    "cdc_pipeline/lake/compaction.py:written_files": IN_A_STEP + "snapshot_files.list or lake_files.write",
    "cdc_pipeline/lake/comparison.py:_source_rows": IN_A_STEP + "lake_table.compare",
    "cdc_pipeline/lake/comparison.py:visible_rows": IN_A_STEP + "lake_table.compare",
    "cdc_pipeline/lake/comparison.py:_compare_copies": IN_A_STEP + "lake_table.compare",
    "cdc_pipeline/lake/comparison.py:_shown": IN_A_STEP + "lake_table.compare",
    "cdc_pipeline/lake/comparison.py:compare": IN_A_STEP + "lake_table.compare",
    "cdc_pipeline/lake/comparison.py:differing_rows": IN_A_STEP + "lake_table.compare",
    "cdc_pipeline/lake/deleted_rows.py:_missing": "plans what lake_files.write does",
    "cdc_pipeline/lake/deleted_rows.py:write": "plans what lake_files.write does",
    "cdc_pipeline/lake/deletion_vectors.py:get": READS_ONLY,
    "cdc_pipeline/lake/deletion_vectors.py:read_vector": READS_ONLY,
    "cdc_pipeline/lake/delta_log.py:checkpoint_before": READS_ONLY,
    "cdc_pipeline/lake/delta_log.py:exists": READS_ONLY,
    "cdc_pipeline/lake/checkpoint_files.py:checkpoint_batches": READS_ONLY,
    "cdc_pipeline/lake/checkpoint_files.py:read_object": READS_ONLY,
    "cdc_pipeline/lake/delta_log.py:append": IN_A_STEP
    + "fence.move, snapshot.publish, lake_schema.commit, lake_table.optimize, lake_table.rewind",
    "cdc_pipeline/lake/delta_log.py:read": READS_ONLY,
    "cdc_pipeline/lake/file_rewriting.py:_put": IN_A_STEP + "lake_files.write",
    "cdc_pipeline/lake/lake_files.py:keep_live": IN_A_STEP + "lake_claim.deduplicate",
    "cdc_pipeline/lake/lake_files.py:name_rows": IN_A_STEP + "lake_claim.deduplicate",
    "cdc_pipeline/lake/maintenance.py:delete_leftovers": IN_A_STEP + "lake_table.vacuum",
    "cdc_pipeline/lake/maintenance.py:commit_nothing": IN_A_STEP + "fence.move or lake_log.checkpoint",
    "cdc_pipeline/lake/maintenance.py:optimize": IN_A_STEP + "lake_table.optimize",
    "cdc_pipeline/lake/maintenance.py:purge": IN_A_STEP + "lake_table.purge",
    "cdc_pipeline/lake/maintenance.py:vacuum": IN_A_STEP + "lake_table.vacuum",
    "cdc_pipeline/lake/new_table.py:refuse_without_beginning": IN_A_STEP + "lake_table.create",
    "cdc_pipeline/lake/passed_over.py:delete_unused": IN_A_STEP + "lake_table.vacuum",
    "cdc_pipeline/lake/rewind.py:_check_there": READS_ONLY,
    "cdc_pipeline/lake/repeated_ids.py:repeated_of_many": IN_A_STEP + "staging_file.get",
    "cdc_pipeline/lake/rewritten_rows.py:rewritten_rows": "plans what lake_files.write does",
    "cdc_pipeline/lake/session.py:checkpointed": IN_A_STEP + "lake_claim.deduplicate",
    "cdc_pipeline/lake/session.py:end_session": OWN_SESSION,
    "cdc_pipeline/lake/session.py:leave_lost": OWN_SESSION,
    "cdc_pipeline/lake/session.py:set_confs": OWN_SESSION,
    "cdc_pipeline/lake/session.py:tune": OWN_SESSION,
    "cdc_pipeline/lake/session.py:untuned_session": OWN_SESSION,
    "cdc_pipeline/lake/session.py:unset_confs": OWN_SESSION,
    "cdc_pipeline/lake/write_claim.py:write_rows": IN_A_STEP + "lake_files.write",
    "cdc_pipeline/metadata_store/ledger/consumers.py:reading": OWN_SESSION,
    "cdc_pipeline/settings/file.py:store_matching": "one file beside pipeline.yml, for cdc setup-source alone",
    "cdc_pipeline/sources/postgres/copy_stream.py:_abandon": OWN_SESSION,
    "cdc_pipeline/sources/files/change_folders.py:check_found": READS_ONLY,
    "cdc_pipeline/sources/files/event_file.py:__init__": READS_ONLY,
    "cdc_pipeline/sources/files/event_file.py:_is_unchanged": READS_ONLY,
    "cdc_pipeline/sources/files/event_file.py:_opened": READS_ONLY,
    "cdc_pipeline/sources/files/partition_files.py:_look": READS_ONLY,
    "cdc_pipeline/sources/mysql/binlog.py:next_event": READS_ONLY,
    "cdc_pipeline/sources/mysql/held_snapshot.py:_answer": READS_ONLY,
    "cdc_pipeline/sources/mysql/held_snapshot.py:_socket_of": "sets time limits of this process's own socket",
    "cdc_pipeline/sources/mysql/held_snapshot.py:running": "a connection of this process to itself",
    "cdc_pipeline/sources/mysql/markers.py:begin_again": IN_A_STEP + "source.begin_again",
    "cdc_pipeline/sources/mysql/markers.py:leave": IN_A_STEP + "source.leave",
    "cdc_pipeline/sources/mysql/markers.py:send": IN_A_STEP + "source.mark",
    "cdc_pipeline/sources/mysql/session.py:connect": OWN_SESSION,
    "cdc_pipeline/sources/mysql/session.py:rows": READS_ONLY,
    "cdc_pipeline/sources/mysql/setup.py:execute_plan": IN_A_STEP + "source.set_up",
    "cdc_pipeline/sources/files/change_folders.py:_first_key": IN_A_STEP + "source_file.read",
    "cdc_pipeline/sources/files/complete_files.py:completed": IN_A_STEP + "source_file.read",
    "cdc_pipeline/sources/files/exported_files.py:_named": IN_A_STEP + "source_file.read",
    "cdc_pipeline/sources/files/complete_files.py:is_marked": IN_A_STEP + "source_file.read",
    "cdc_pipeline/sources/files/listed_files.py:_look": IN_A_STEP + "source_file.read",
    "cdc_pipeline/sources/files/record_file.py:_copied": "a file of this process's own, without a name",
    "cdc_pipeline/sources/files/refused_files.py:_written": IN_A_STEP + "source_file.read",
    "cdc_pipeline/sources/files/record_formats.py:_spooled": "a file of this process's own, without a name",
    "cdc_pipeline/sources/postgres/catalogue.py:rows": READS_ONLY,
    "cdc_pipeline/sources/postgres/table_copy.py:read_columns": READS_ONLY,
    "cdc_pipeline/sources/postgres/page_ranges.py:plan_ranges": READS_ONLY,
    "cdc_pipeline/sources/postgres/position.py:snapshot_connection": READS_ONLY,
    "cdc_pipeline/sources/postgres/receiver.py:__init__": OWN_SESSION,
    "cdc_pipeline/sources/postgres/receiver.py:_batch": READS_ONLY,
    "cdc_pipeline/sources/postgres/receiver.py:_check_beside": READS_ONLY,
    "cdc_pipeline/sources/postgres/receiver.py:close": OWN_SESSION,
    "cdc_pipeline/sources/postgres/receiver.py:_tell": "repeats what was confirmed in a step",
    "cdc_pipeline/sources/postgres/receiver.py:_receive": "wakes this process's own thread",
    "cdc_pipeline/sources/postgres/receiver.py:take": "wakes this process's own thread",
    "cdc_pipeline/sources/postgres/receiver.py:confirm": IN_A_STEP + "slot.confirm",
    "cdc_pipeline/sources/postgres/session.py:_completed": "reads a URL",
    "cdc_pipeline/sources/postgres/session.py:_prepare": OWN_SESSION,
    "cdc_pipeline/sources/postgres/session.py:bound_waits": OWN_SESSION,
    "cdc_pipeline/sources/postgres/session.py:connect": OWN_SESSION,
    "cdc_pipeline/sources/postgres/session.py:connect_for_replication": OWN_SESSION,
    "cdc_pipeline/sources/postgres/stream.py:_check_server": READS_ONLY,
    "cdc_pipeline/sources/postgres/stream.py:send_marker": IN_A_STEP + "source.mark",
    "cdc_pipeline/consume/spill.py:spilled": "a file of this process's own, without a name",
    "cdc_pipeline/operations/source_copies.py:of": "a folder of this process's own",
    "cdc_pipeline/operations/warm_up.py:run": READS_ONLY,
    "cdc_pipeline/settings/yaml_text.py:read_text": READS_ONLY,
    "plugins/cdc_hosts.py:allowed_hosts": READS_ONLY,
    "snapshot/snapshot_to_staging.py:_put_snapshot_file": "a folder of this process's own",
}
"""Functions that reach outside without a step around the call, and why that is right."""


def test_every_call_that_reaches_outside_is_a_named_step() -> None:
    found = set(unnamed_calls())
    assert found - IMPLEMENTATIONS.keys() == set(), "put a step around these calls, and its name into steps.py"
    assert IMPLEMENTATIONS.keys() - found == set(), "these functions do so no more"


def test_every_step_has_its_place_among_the_checked_in_names() -> None:
    taken = set().union(*(step_names(path.read_text()) for path in modules()))
    assert taken - ALL == set(), "a new step: put it where it is killed"
    assert ALL - taken == IN_TESTS_ALONE, "no longer taken"


@pytest.mark.parametrize(
    "call",
    [
        "self._objects.put_if_absent(key, content)",
        "store.delete(key)",
        "os.rename(here, there)",
        "link(here, there)",
        "here.replace(there)",
        "path.write_bytes(content)",
        "path.open('wb')",
        "open(path, 'a')",
        "shutil.rmtree(path)",
        "subprocess.run(['true'])",
        "urlopen(address)",
        "engine.begin()",
        "cursor.execute(statement)",
        "connection.commit()",
        "frame.write.parquet(url)",
        "session.sql(statement)",
        "session.conf.set(name, value)",
        "session.client.config(operation)",
        "self._stream.confirm(position)",
    ],
)
def test_a_call_that_reaches_outside_is_found_unless_a_step_is_around_it(call: str) -> None:
    imports = (
        "import os, shutil, subprocess, psycopg2, sqlalchemy, pyspark\n"
        "from os import link\nfrom urllib.request import urlopen\n"
    )
    bare = f"{imports}def f():\n    {call}\n"
    assert [found.function for found in calls_outside_steps(bare)] == ["f"]
    around = f"{imports}def f():\n    with step(on_step, 'a.b'):\n        {call}\n"
    assert calls_outside_steps(around) == []


@pytest.mark.parametrize(
    "call",
    ["text.replace('a', 'b')", "known.get(name)", "os.getpid()", "moment.replace(tzinfo=UTC)", "path.open('rb')"],
)
def test_a_call_that_stays_inside_is_not_taken_for_one(call: str) -> None:
    assert calls_outside_steps(f"import os\ndef f():\n    {call}\n") == []


def unnamed_calls() -> Iterator[str]:
    for path in modules():
        place = path.relative_to(ROOT).as_posix()
        for call in calls_outside_steps(path.read_text()):
            sys.stdout.write(f"{place}:{call.line} {call.called[:80]}\n")
            yield f"{place}:{call.function}"


def modules() -> Iterator[Path]:
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*.py")):
            if not any(path.is_relative_to(ROOT / apart) for apart in APART):
                yield path
