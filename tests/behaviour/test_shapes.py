"""The lake follows a source table that changes: by the columns' numbers, in one commit, before the claim is merged."""

from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.protocol import Lake, LakeTable
from cdc_pipeline.lake.schema_change import SchemaConflict
from cdc_pipeline.record import DELETED, OWN_PREFIX, VERSION
from cdc_pipeline.steps import Moment, no_step
from tests.crash.steps import changes
from tests.support.lake import Feed, event, move, table_of, version
from tests.support.lakes import Arm
from tests.support.shapes import columns

FIRST = columns("id int8 1", "a text 2", "b int4 3")


@pytest.fixture
def table(lake: Lake) -> LakeTable:
    table = table_of(FIRST)
    lake.create_table(table)
    return table


@pytest.fixture
def feed(arm: Arm, table: LakeTable) -> Feed:
    return Feed(store=arm.store, table=table)


def shown(arm: Arm, table: LakeTable) -> dict[object, dict[str, Any]]:
    """Visible rows by their first column, with all columns that are not ours."""
    rows = [row for row in arm.rows(table) if not row[DELETED]]
    return {
        next(iter(row.values())): {name: value for name, value in row.items() if not name.startswith(OWN_PREFIX)}
        for row in rows
    }


def test_columns_that_are_renamed_keep_their_values_also_when_they_swap_names(
    lake: Lake, arm: Arm, table: LakeTable, feed: Feed
) -> None:
    lake.upsert(table, feed.claim([event("i", 1, 1, a="x", b=1), event("i", 2, 2, a="y", b=2)]))
    lake.upsert(table, feed.claim([event("u", 3, 2, b=20), event("u", 3, 7, b=70)]))
    before = {row["id"]: row[VERSION] for row in arm.rows(table)}
    swapped = columns("key int8 1", "b text 2", "c int4 3", key=("key",))
    lake.upsert(table, feed.claim([event("i", 4, 3, b="z", c=3)], schema=swapped))
    assert shown(arm, table) == {
        1: {"key": 1, "b": "x", "c": 1},
        2: {"key": 2, "b": "y", "c": 20},
        3: {"key": 3, "b": "z", "c": 3},
    }
    assert {row["key"]: row[VERSION] for row in arm.rows(table)} == before | {3: version(4)}
    again = columns("key int8 1", "c text 2", "b int4 3", key=("key",))
    lake.upsert(
        table, feed.claim([event("u", 5, 1, b=5), event("u", 6, 7, c="told"), *move(7, (2,), (9,))], schema=again)
    )
    assert shown(arm, table) == {
        1: {"key": 1, "c": "x", "b": 5},
        9: {"key": 9, "c": "y", "b": 20},
        3: {"key": 3, "c": "z", "b": 3},
        7: {"key": 7, "c": "told", "b": 70},
    }


def test_rows_that_were_there_show_the_default_of_an_added_column_and_new_ones_what_they_tell(
    lake: Lake, arm: Arm, table: LakeTable, feed: Feed
) -> None:
    lake.upsert(table, feed.claim([event("i", 1, 1, a="x", b=1), event("i", 2, 2, a="y", b=2)]))
    added = columns("id int8 1", "a text 2", "b int4 3", "c numeric(6,2) 4 1.50", "d text 5", "e bytea 6 \\x00ff")
    work = feed.claim([event("i", 4, 3, a="z", b=3, c=None, d="d", e=b"e"), event("u", 5, 2, d="later")], schema=added)
    outcome = lake.upsert(table, work)
    assert (outcome.counts.inserted, outcome.counts.updated, outcome.lake_version) == (1, 1, 3)
    seen = {id_: (str(row["c"]), row["d"], row["e"]) for id_, row in shown(arm, table).items()}
    assert seen == {1: ("1.50", None, b"\x00\xff"), 2: ("1.50", "later", b"\x00\xff"), 3: ("None", "d", b"e")}
    late = feed.slice([event("i", 3, 8, a="old", b=8)], schema=FIRST)
    lake.upsert(table, replace(feed.claim([]), first_number=late.number, slices=(replace(late, late=True),), late=True))
    assert {name: str(value) for name, value in shown(arm, table)[8].items()} == {
        "id": "8",
        "a": "old",
        "b": "8",
        "c": "1.50",
        "d": "None",
        "e": str(b"\x00\xff"),
    }


@pytest.mark.parametrize("keeps", [True, False], ids=["keep", "drop"])
def test_values_of_a_dropped_column_never_come_back_under_a_later_column_of_that_name(
    lake: Lake, arm: Arm, table: LakeTable, feed: Feed, *, keeps: bool
) -> None:
    table = replace(table, keeps_dropped=keeps)
    lake.upsert(table, feed.claim([event("i", 1, 1, a="x", b=1), event("i", 2, 2, a="y", b=2)]))
    dropped = columns("id int8 1", "b int4 3")
    lake.upsert(table, feed.claim([event("u", 3, 1, b=10)], schema=dropped))
    assert lake.read_columns(table) == ("id", "b")
    assert ("a" in arm.rows(table)[0]) == keeps
    again = columns("id int8 1", "b int4 3", "a int8 4")
    lake.upsert(table, feed.claim([event("u", 4, 2, b=20, a=7)], schema=again))
    assert shown(arm, table) == {1: {"id": 1, "b": 10, "a": None}, 2: {"id": 2, "b": 20, "a": 7}}
    kept = {row["id"]: row.get(f"{OWN_PREFIX}dropped_2_a") for row in arm.rows(table)}
    assert kept == ({1: "x", 2: "y"} if keeps else {1: None, 2: None})
    assert lake.read_columns(table) == ("id", "b", "a")


def test_an_incomplete_row_keeps_its_value_of_a_dropped_column(
    lake: Lake, arm: Arm, table: LakeTable, feed: Feed
) -> None:
    table = replace(table, keeps_dropped=True)
    lake.upsert(table, feed.claim([event("u", 1, 1, a="x")]))
    lake.upsert(table, feed.claim([event("u", 2, 1, b=5)], schema=columns("id int8 1", "b int4 3")))
    assert shown(arm, table) == {1: {"id": 1, "a": "x", "b": 5}}


def test_a_column_becomes_wider_and_holds_what_it_held(lake: Lake, arm: Arm) -> None:
    narrow = columns("id int4 1", "n int2 2", "f float4 3", "m numeric(6,2) 4", "d date 5")
    table = table_of(narrow)
    lake.create_table(table)
    feed = Feed(store=arm.store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, 1, n=5, f=0.5, m=Decimal("1.25"), d=date(2020, 1, 2))]))
    wide = columns("id int8 1", "n int8 2", "f float8 3", "m numeric(10,4) 4", "d timestamp 5")
    lake.upsert(table, feed.claim([event("i", 2, 1 << 40, n=1 << 50, f=0.1, m=None, d=None)], schema=wide))
    found = {id_: (row["n"], row["f"], str(row["m"]), row["d"]) for id_, row in shown(arm, table).items()}
    assert found == {1: (5, 0.5, "1.2500", datetime.fromisoformat("2020-01-02")), 1 << 40: (1 << 50, 0.1, "None", None)}
    for text in ("n int2 2", "n text 2", "n numeric(30,0) 2"):
        other = columns("id int8 1", text, "f float8 3", "m numeric(10,4) 4", "d timestamp 5")
        with pytest.raises(SchemaConflict, match=r"'n'.*take a new snapshot.*: cdc snapshot TABLE"):
            lake.upsert(table, replace(feed.claim([event("i", 3, 2, f=0.5)], schema=other), first_number=3))
        feed.next_number -= 1


def test_a_table_without_a_key_follows_too(lake: Lake, arm: Arm) -> None:
    table = table_of(columns("a text 1", "b int4 2", key=()))
    lake.create_table(table)
    feed = Feed(store=arm.store, table=table)
    rows = [event("i", number, a="x", b=1) for number in (1, 2)]
    lake.upsert(table, feed.claim([*rows, event("i", 3, a="y", b=2)]))
    after = columns("c text 1", "b int4 2", "d int4 3 4", key=())
    lake.upsert(table, feed.claim([event("d", 5, c="x", b=1, d=4), event("i", 6, c="y", b=2, d=4)], schema=after))
    found = sorted((row["c"], row["b"], row["d"]) for row in arm.rows(table))
    assert found == [("x", 1, 4), ("y", 2, 4), ("y", 2, 4)]


def test_a_rewound_table_has_its_old_columns_and_follows_again(
    lake: Lake, arm: Arm, table: LakeTable, feed: Feed
) -> None:
    shown_first = lake.upsert(table, feed.claim([event("i", 1, 1, a="x", b=1)])).lake_version
    then = shown(arm, table)
    work = feed.claim(
        [event("i", 2, 2, c="y", b=2, d=2)], schema=columns("id int8 1", "c text 2", "b int4 3", "d int4 4 9")
    )
    lake.upsert(table, work)
    latest = shown(arm, table)
    lake.rewind(table, shown_first, fence_then=None)
    assert shown(arm, table) == then != latest
    assert lake.read_columns(table) == ("id", "a", "b")
    lake.upsert(table, work)
    assert (
        shown(arm, table) == latest == {1: {"id": 1, "c": "x", "b": 1, "d": 9}, 2: {"id": 2, "c": "y", "b": 2, "d": 2}}
    )


class Killed(BaseException):
    pass


def test_killed_at_any_step_of_a_change_the_claim_is_repeated_to_the_same_end(
    lake: Lake, arm: Arm, table: LakeTable, feed: Feed
) -> None:
    """Where deaths differ: tests/crash/steps.py."""
    lake.upsert(table, feed.claim([event("i", 1, 1, a="x", b=1), event("i", 2, 2, a="y", b=2)]))
    work = feed.claim(
        [event("u", 3, 2, c="z", b=3, d=5)], schema=columns("id int8 1", "c text 2", "b int4 3", "d int4 4 9")
    )
    sites: list[tuple[str, Moment]] = []

    def kill(name: str, moment: Moment) -> None:
        is_lethal = not sites or (moment is Moment.AFTER and changes(name))
        if is_lethal and (name, moment) not in sites:
            sites.append((name, moment))
            raise Killed

    while True:
        try:
            arm.make(kill).upsert(table, work)
        except Killed:
            continue
        break
    assert ("lake_schema.commit", Moment.AFTER) in sites
    assert shown(arm, table) == {1: {"id": 1, "c": "x", "b": 1, "d": 9}, 2: {"id": 2, "c": "z", "b": 3, "d": 5}}
    assert lake.read_version(table) == 3


def test_a_change_loses_against_whoever_committed_since_its_fence_was_read(
    lake: Lake, arm: Arm, table: LakeTable, feed: Feed
) -> None:
    lake.upsert(table, feed.claim([event("i", 1, 1, a="x", b=1)]))
    old = columns("id int8 1", "c text 2", "b int4 3")
    new = columns("id int8 1", "d text 2", "b int4 3")
    work, later = (
        feed.claim([event("u", number, 1, b=number)], schema=schema) for number, schema in ((2, old), (3, new))
    )
    passed: list[str] = []

    def rival(name: str, moment: Moment) -> None:
        if (name, moment) == ("lake_schema.commit", Moment.BEFORE) and not passed:
            passed.append(name)
            lake.upsert(table, work)
            lake.upsert(table, later)

    try:
        outcome = arm.make(rival).upsert(table, work)
    except LakeError:
        outcome = lake.upsert(table, work)
    assert passed
    assert outcome.already_applied
    assert shown(arm, table) == {1: {"id": 1, "d": "x", "b": 3}}


def test_nothing_is_committed_for_a_change_that_may_not_be(lake: Lake, arm: Arm, table: LakeTable, feed: Feed) -> None:
    lake.upsert(table, feed.claim([event("i", 1, 1, a="x", b=1)]))
    work = feed.claim([event("u", 2, 1, b=2)], schema=columns("id int8 1", "c text 2", "b int4 3"))

    def forbids() -> None:
        raise LakeError("the lease is over")

    with pytest.raises(LakeError, match="lease"):
        lake.upsert(table, work, may_commit=forbids)
    assert lake.read_version(table) == 1
    assert arm.make(no_step).upsert(table, work).counts.updated == 1
