"""The kernel comes out as the model does, for random logs cut anywhere and arriving in any promised order."""

from itertools import permutations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzzing import logs
from tests.support.histories import (
    COLUMNS,
    Claims,
    History,
    arrive_anyhow,
    cut_anywhere,
    histories,
    keyless_histories,
)
from tests.support.reference.kernel import (
    KeyedTable,
    Register,
    RowState,
    deduplicate,
    join,
    join_keyless,
    join_states,
    net_copies,
    purge,
    show,
)
from tests.support.reference.model import Event, Id, KeylessRows, Row, Table, apply_events, apply_to_keyless

SEEDS = st.integers(0, 1 << 30)
VERSIONS = st.sampled_from(["", "1", "2", "3", "4"])
STATES = st.builds(
    RowState,
    upsert=VERSIONS,
    deletions=st.sets(VERSIONS, max_size=2).map(lambda found: tuple(sorted(found))),
    known=st.dictionaries(
        st.sampled_from(COLUMNS), VERSIONS.map(lambda version: Register(version=version, value=f"at {version}"))
    ),
    lacked=st.dictionaries(st.sampled_from(COLUMNS), VERSIONS),
)


@given(STATES, STATES, STATES)
def test_states_join_in_any_order_any_grouping_and_any_repetition(
    one: RowState, two: RowState, three: RowState
) -> None:
    joined = {
        order: join_states(join_states(order_[0], order_[1]), order_[2])
        for order, order_ in enumerate(permutations((one, two, three)))
    }
    assert all(state == joined[0] for state in joined.values())
    assert join_states(one, join_states(two, three)) == joined[0]
    assert join_states(joined[0], two) == joined[0]


@given(histories(ordered=True), SEEDS, st.sampled_from(["hard", "soft"]))
@logs(0.4)
def test_an_ordered_log_may_be_cut_anywhere(history: History, seed: int, deletes: str) -> None:
    check_every_boundary(cut_anywhere(history, Random(seed)), soft=deletes == "soft", tombstones=deletes == "soft")


@given(histories(ordered=False), SEEDS, st.sampled_from(["hard", "soft"]))
@logs(0.4)
def test_an_unordered_log_may_arrive_anyhow(history: History, seed: int, deletes: str) -> None:
    check_every_boundary(arrive_anyhow(history, Random(seed)), soft=deletes == "soft", tombstones=True)


@given(keyless_histories(), SEEDS)
@logs(0.2)
def test_a_keyless_table_may_be_cut_anywhere(history: History, seed: int) -> None:
    rows = KeylessRows()
    arrived: set[str] = set()
    for claim in cut_anywhere(history, Random(seed)):
        rows = join_keyless(rows, net_copies(claim))
        arrived |= {event.version for event in claim}
        assert rows == apply_to_keyless(KeylessRows(), [event for event in history.events if event.version in arrived])


@given(histories(ordered=False), SEEDS)
def test_tombstones_below_what_can_still_come_may_be_purged(history: History, seed: int) -> None:
    claims = arrive_anyhow(history, Random(seed))
    kept, purged = KeyedTable(), KeyedTable()
    for place, claim in enumerate(claims):
        lowest = min((event.version for later in claims[place + 1 :] for event in later), default=None)
        kept, purged = join(kept, deduplicate(claim)), purge(join(purged, deduplicate(claim)), below=lowest)
        assert show(purged, columns=COLUMNS) == show(kept, columns=COLUMNS)


def check_every_boundary(claims: Claims, *, soft: bool, tombstones: bool) -> None:
    table = KeyedTable()
    arrived: list[Event] = []
    for claim in claims:
        table = join(table, deduplicate(claim), tombstones=tombstones)
        arrived += claim
        expected = apply_events({}, arrived, columns=COLUMNS, soft=soft)
        assert whole(show(table, columns=COLUMNS, soft=soft)) == whole(expected)


def whole(table: Table) -> dict[Id, tuple[Row, list[object]]]:
    """Hidden rows may leave a column out that is NULL for all they know."""
    return {
        id_: (Row(version=row.version, values={}, deleted=row.deleted, incomplete=row.incomplete), _values(row))
        for id_, row in table.items()
    }


def _values(row: Row) -> list[object]:
    return [row.values.get(name) for name in COLUMNS]
