"""Places in the logs of MariaDB and MySQL: each is what was read before it, in whatever steps it is asked for."""

from functools import reduce
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.errors import SourceError
from cdc_pipeline.sources.mysql.gtid import parse_gtid
from cdc_pipeline.sources.mysql.gtid_set import GtidSet, LogHistory, parse_gtid_set
from cdc_pipeline.sources.mysql.log_mark import LogMarks
from cdc_pipeline.sources.mysql.log_runs import LogTransaction

UUIDS = [f"{digit * 8}-0000-0000-0000-000000000000" for digit in "abc"]
A, B, C = UUIDS


def test_a_set_is_written_as_it_is_read() -> None:
    text = f"{A}:1-5:7:9-10,{B}:1"
    assert str(parse_gtid_set(text)) == text
    assert str(parse_gtid_set(f"{B.upper()}:1,\n{A}:9-10:1-3:4-5:7")) == text
    assert (parse_gtid_set(text).end, parse_gtid_set("").end) == (10, 1)


def test_each_tag_of_a_server_has_numbers_of_its_own() -> None:
    found = parse_gtid_set(f"{A}:1-6:abc:1-2:xy_1:1, {B}:ABC:4")
    assert found.intervals == {A: ((1, 7),), f"{A}:abc": ((1, 3),), f"{A}:xy_1": ((1, 2),), f"{B}:abc": ((4, 5),)}
    assert found.end == 11
    assert parse_gtid_set(str(found)) == found
    tagged = LogTransaction(origin=f"{A}:abc", number=2, position=9)
    assert str(found.before(tagged)) == f"{A}:1-6,{A}:abc:1,{A}:xy_1:1,{B}:abc:4"


@pytest.mark.parametrize("text", ["0-1-42", f"{A}", f"{A}:", f"{A}:tag", f"{A}:1:tag", f"{A}:a-b:1", f"{A}:1-x"])
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="MySQL's GTIDs"):
        parse_gtid_set(text)


def test_an_earlier_place_is_told_only_where_one_server_wrote_everything() -> None:
    assert str(parse_gtid_set(f"{A}:1-9").at(5)) == f"{A}:1-4"
    assert str(parse_gtid_set(f"{A}:1-9").at(1)) == ""
    assert parse_gtid_set(f"{A}:2-9").at(5) is None
    assert parse_gtid_set(f"{A}:1-3:5-9").at(5) is None
    assert parse_gtid_set(f"{A}:1-9,{B}:1").at(5) is None


@pytest.mark.parametrize(
    ("number", "left"), [(1, f"{A}:2-5:8,{B}:1"), (3, f"{A}:1-2:4-5:8,{B}:1"), (8, f"{A}:1-5,{B}:1")]
)
def test_the_place_before_a_transaction_lacks_that_one_alone(number: int, left: str) -> None:
    whole = parse_gtid_set(f"{A}:1-5:8,{B}:1")
    assert str(whole.before(LogTransaction(origin=A, number=number, position=number))) == left
    assert str(parse_gtid_set(f"{B}:1").before(LogTransaction(origin=B, number=1, position=1))) == ""
    assert str(parse_gtid("0-1-9").before(LogTransaction(origin="0-1", number=4, position=4))) == "0-1-3"


def test_a_set_contains_another_one_whatever_the_uuids() -> None:
    whole = parse_gtid_set(f"{A}:1-5:8-9,{B}:1-2")
    assert whole.contains(parse_gtid_set(f"{A}:2-4:8,{B}:1"))
    assert not whole.contains(parse_gtid_set(f"{A}:5-8"))
    assert not whole.contains(parse_gtid_set(f"{C}:1"))
    assert whole.begins_like(parse_gtid_set(f"{A}:1,{B}:1"))
    assert not whole.begins_like(parse_gtid_set(f"{A}:2,{B}:1"))
    assert not whole.begins_like(parse_gtid_set(f"{A}:1"))


ORIGINS = st.lists(st.sampled_from(UUIDS), max_size=40)


@given(origins=ORIGINS, asked=st.lists(st.integers(0, 40)), shuffle=st.randoms(use_true_random=False))
def test_the_place_of_mysql_is_the_set_of_what_was_read_before_it(
    origins: list[str], asked: list[int], shuffle: Random
) -> None:
    """Also where the numbers of a UUID come in another order, as in the log of a replica."""
    numbers = {uuid: list(range(1, 60)) for uuid in UUIDS}
    shuffle.shuffle(numbers[A])
    start = parse_gtid_set(f"{C}:100-104")
    history, read = LogHistory(start), []
    for index, uuid in enumerate(origins):
        read.append((uuid, numbers[uuid].pop(0)))
        history.add(LogTransaction(origin=uuid, number=read[-1][1], position=start.end + index))
    assert history.end() == expected(start, read)
    for count in sorted(min(count, len(read)) for count in asked):
        assert history.place_at(start.end + count) == expected(start, read[:count])


def expected(start: GtidSet, read: list[tuple[str, int]]) -> GtidSet:
    return reduce(GtidSet.joined, (parse_gtid_set(f"{uuid}:{number}") for uuid, number in read), start)


def test_the_place_of_mariadb_is_its_last_gtid() -> None:
    history = LogHistory(parse_gtid("0-1-10"))
    for server, number in ((1, 11), (1, 15), (2, 16), (2, 17)):
        history.add(LogTransaction(origin=f"0-{server}", number=number, position=number))
    found = [str(history.place_at(position)) for position in (11, 12, 16, 17, 18)]
    assert found == ["0-1-10", "0-1-11", "0-1-15", "0-2-16", "0-2-17"]


def test_each_position_has_the_newest_mark_before_it() -> None:
    marks = LogMarks("")
    for number in (3, 6):
        marks.add(LogTransaction(origin=A, number=number, position=number), number * 1_000_000)
    noted = [marks.text_at(position) for position in (3, 4, 6, 7, 9)]
    found = [LogMarks(text).first for text in noted]
    assert [mark and (mark.transaction.number, mark.commit_time) for mark in found] == [
        None,
        *[(3, 3_000_000)] * 2,
        *[(6, 6_000_000)] * 2,
    ]


def test_a_cut_behind_a_batch_has_its_last_transaction_as_mark_and_one_within_it_the_first() -> None:
    marks = LogMarks("")
    marks.add_batch([(LogTransaction(origin=A, number=number, position=number), number) for number in range(1, 10)])
    marks.add_batch([(LogTransaction(origin=A, number=10, position=10), 10)])
    marks.add_batch([])
    noted = [LogMarks(marks.text_at(position)).first for position in (1, 2, 9, 10, 11)]
    assert [mark and mark.transaction.number for mark in noted] == [None, 1, 1, 9, 10]
