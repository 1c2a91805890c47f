"""Which XA transactions are prepared at a place of the log, and which tables their commits change."""

import pytest

from cdc_pipeline.sources.mysql.log_runs import LogTransaction
from cdc_pipeline.sources.mysql.prepared import Completed, PreparedTransactions, Tables, completed_by

ORDERS, OTHER = ("shop", "orders"), ("shop", "other")


def at(position: int) -> LogTransaction:
    return LogTransaction(origin="0-1", number=position, position=position)


def commit(xid: str) -> Completed:
    return Completed(xid=xid, is_commit=True)


def gone(xid: str, transaction: LogTransaction) -> None:
    """The log no longer has it."""
    del xid, transaction


def test_a_commit_changes_what_its_prepare_changed_and_one_without_a_prepare_maybe_everything() -> None:
    prepared = PreparedTransactions()
    prepared.prepare("a", at(3), [ORDERS])
    prepared.prepare("b", at(4), [])
    assert prepared.complete(commit("a"), 5, gone) == {ORDERS}
    assert prepared.complete(commit("b"), 6, gone) == set()
    assert prepared.complete(commit("a"), 7, gone) is None
    assert prepared.complete(commit(""), 8, gone) is None
    assert prepared.complete(Completed(xid="c", is_commit=False), 9, gone) == ()


def test_what_is_registered_at_a_position_is_prepared_there_also_if_more_was_read() -> None:
    prepared = PreparedTransactions()
    prepared.prepare("a", at(3), [ORDERS])
    prepared.complete(commit("a"), 5, gone)
    prepared.prepare("a", at(7), [OTHER])
    assert prepared.text_at(3) == ""
    assert [prepared.text_at(position) for position in (4, 5)] == ['{"a": ["0-1", 3, 3]}'] * 2
    assert [prepared.text_at(position) for position in (6, 7)] == [""] * 2
    assert prepared.text_at(8) == '{"a": ["0-1", 7, 7]}'


def test_a_later_reader_looks_back_for_what_it_did_not_see() -> None:
    first = PreparedTransactions()
    first.prepare("a", at(3), [ORDERS])
    asked = []

    def look_back(xid: str, transaction: LogTransaction) -> Tables:
        asked.append((xid, transaction))
        return {OTHER}

    later = PreparedTransactions(first.text_at(9))
    assert later.text_at(10) == first.text_at(9)
    assert later.complete(commit("a"), 10, look_back) == {OTHER}
    assert asked == [("a", at(3))]
    assert later.text_at(11) == ""
    assert PreparedTransactions(first.text_at(9)).complete(commit("a"), 10, gone) is None


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("XA COMMIT X'61',X'62',7", commit("61,62,7")),
        ("XA COMMIT X'7A27',X'',4294967295", commit("7a27,,4294967295")),
        ("xa rollback X'61',X'',-1", Completed(xid="61,,4294967295", is_commit=False)),
        ("XA COMMIT 'a'", commit("")),
        ("XA START X'61',X'',1", None),
        ("XA END X'61',X'',1", None),
        ("COMMIT", None),
    ],
)
def test_the_end_of_a_prepared_transaction_is_read_from_its_statement(statement: str, found: Completed | None) -> None:
    assert completed_by(statement) == found
