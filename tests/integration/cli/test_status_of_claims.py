"""`cdc status` shows no error of a claim that was given up: what still fails is a reason of its own."""

from tests.support.command_line import CommandLine
from tests.support.streams import run_sql

GIVEN_UP = """
INSERT INTO cdc.claim (claim_id, table_id, first_number, last_number, epoch, owner, attempt, state, error, finished_at)
SELECT gen_random_uuid(), table_id, 1, 1, 1, 'a worker', 1, 'failed', 'the slice file of 1 is gone', now()
FROM cdc.source_table
"""


def test_the_error_of_a_claim_that_was_given_up_is_no_problem_of_a_table_that_does_not_fail(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    before = cdc.run("status", "--json").rows[0]
    run_sql(cdc.store_url, GIVEN_UP)
    after = cdc.run("status", "--json").rows[0]
    assert (before["failures"], after["failures"], after["reason"]) == (None, None, before["reason"])
    shown = cdc.run("status")
    assert (shown.exit_code, "it has no snapshot yet" in shown.output, "is gone" in shown.output) == (0, True, False)
    assert cdc.run("sql", "lag", "--json").rows[0]["last_claim_error"] == "the slice file of 1 is gone"
