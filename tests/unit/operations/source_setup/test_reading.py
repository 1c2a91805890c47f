"""A stream that has to be opened again and again."""

from threading import Event

from structlog.testing import capture_logs

from cdc_pipeline.errors import StoreAway, StreamMoved
from cdc_pipeline.operations.source_setup.reading import ReopenPauses, retried


def test_a_stream_that_moves_again_without_a_cut_in_between_is_opened_after_growing_pauses() -> None:
    pauses = ReopenPauses(chain_position=lambda: "1", stale_tables=lambda: 0)
    assert [pauses.pause(0.1) for _ in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]
    assert pauses.pause(31) == 0, "it was open for long"
    assert pauses.pause(0.1) == 1


def test_a_stream_that_registered_a_cut_is_opened_again_at_once() -> None:
    positions = iter(["1", "1", "2", "3", "3"])
    pauses = ReopenPauses(chain_position=lambda: next(positions), stale_tables=lambda: 0)
    assert [pauses.pause(0.1) for _ in range(5)] == [0, 1, 0, 0, 1]


def test_a_stream_that_makes_one_table_after_another_stale_is_opened_again_at_once() -> None:
    """One event may concern many tables, and each opening finds the next one."""
    counts = iter([1, 2, 3, 3, 4])
    pauses = ReopenPauses(chain_position=lambda: "1", stale_tables=lambda: next(counts))
    assert [pauses.pause(0.1) for _ in range(5)] == [0, 0, 0, 1, 0]


def test_a_store_that_does_not_answer_counts_as_no_cut() -> None:
    def away() -> str:
        raise StoreAway("the store does not answer")

    pauses = ReopenPauses(chain_position=away, stale_tables=lambda: 0)
    assert pauses.pause(0.1) == 0
    pauses.chain_position = lambda: "1"
    assert pauses.pause(0.1) == 0
    pauses.chain_position = away
    assert pauses.pause(0.1) == 1


def test_what_is_repeated_says_in_its_own_words_what_does_not_happen_meanwhile() -> None:
    stop = Event()

    def fail() -> None:
        stop.set()
        raise StoreAway("the store does not answer")

    with capture_logs() as logs:
        retried(fail, stop, words="no request is taken")
    assert [(log["event"], log["found"]) for log in logs] == [("no request is taken", "the store does not answer")]


def test_a_consumer_waits_before_it_opens_the_stream_again() -> None:
    stop, tries = Event(), list[int]()

    def move() -> None:
        tries.append(1)
        if len(tries) > 1:
            stop.set()
        raise StreamMoved("the broker cannot continue", remedy="open the stream again")

    with capture_logs() as logs:
        retried(move, stop, pauses=ReopenPauses(chain_position=lambda: "1", stale_tables=lambda: 0))
    assert [log["next_try_seconds"] for log in logs] == [0, 1]
