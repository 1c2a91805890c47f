"""A server of MySQL that takes over has a log of its own, whose places cannot be compared with those before."""

import json
from typing import Any

import pytest

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.events_alone import EventsAlone
from cdc_pipeline.sources.debezium.memory import PartitionMemory
from cdc_pipeline.sources.known import KnownTable
from tests.support.decoding import Decoding, KeptText, orders

EVENTS = TableName.parse("shop.shop.ev")
KEYED = TableSettings(name=str(EVENTS), id=("id",), columns={"id": "int8"})
KEYLESS = TableSettings(name=str(EVENTS), columns={"id": "int8"})
OLD, NEW = 150, 3


def mysql(file: int, pos: int, id_: int, server: int, *, op: str = "c") -> dict[str, Any]:
    source = {"connector": "mysql", "db": "shop", "table": "ev", "server_id": server, "ts_ms": 1_700_000_000_000}
    place = {"file": f"bin.{file:06}", "pos": pos, "row": 0, "gtid": f"a:{pos}", "snapshot": str(op == "r").lower()}
    return {"op": op, "before": None, "after": {"id": id_}, "source": source | place}


def ids(reader: Decoding) -> list[int]:
    return [row["id"] for row in reader.rows]


@pytest.mark.parametrize(("table", "partitions"), [(KEYED, 2), (KEYLESS, 1), (KEYLESS, 2)])
@pytest.mark.parametrize("again", [False, True], ids=["in one run", "after a restart"])
def test_lower_places_of_another_server_are_refused(*, table: TableSettings, partitions: int, again: bool) -> None:
    reader = Decoding(table, partitions=partitions)
    reader.send(*(mysql(OLD, 400 + each, each, 1) for each in range(8)))
    second = Decoding(table, partitions=partitions, registered=reader.registered) if again else reader
    second.send(*(mysql(NEW, 400 + each, each, 2) for each in range(3)))
    assert len(ids(reader)) == 8
    assert second.skipped == []
    assert ["come from the server 2, at lower places" in why for why in second.refused] == [True] * 3


@pytest.mark.parametrize("servers", [(1, 1), (1, 2)], ids=["of one server", "with those that it copied from another"])
def test_lines_of_known_servers_may_be_sent_again(servers: tuple[int, int]) -> None:
    lines = [mysql(OLD, 400, 1, servers[0]), mysql(OLD, 500, 2, servers[1])]
    keyed, keyless = Decoding(KEYED, partitions=2), Decoding(KEYLESS)
    for reader in (keyed, keyless):
        reader.send(*lines)
        reader.send(*lines)
        assert reader.refused == []
    assert (ids(keyed), ids(keyless)) == ([1, 2, 1, 2], [1, 2])


def test_another_server_at_higher_places_goes_on() -> None:
    reader = Decoding(KEYLESS)
    reader.send(mysql(NEW, 400, 1, 1), mysql(OLD, 400, 2, 2), mysql(OLD, 500, 3, 2))
    assert (ids(reader), reader.refused) == ([1, 2, 3], [])
    assert PartitionMemory.decode(reader.registered[0][EVENTS]).servers == (1, 2)


def test_rows_of_a_snapshot_name_no_server() -> None:
    reader = Decoding(KEYED, partitions=2)
    reader.send(mysql(OLD, 400, 1, 0, op="r"), mysql(OLD, 400, 2, 0, op="r"), mysql(OLD, 500, 3, 1))
    reader.send(mysql(OLD, 400, 1, 0, op="r"))
    assert (ids(reader), reader.refused) == ([1, 2, 3, 1], [])


def test_in_a_table_with_an_id_and_one_partition_no_place_counts() -> None:
    reader = Decoding(KEYED)
    reader.send(mysql(OLD, 400, 1, 1), mysql(NEW, 400, 2, 2))
    assert (ids(reader), reader.refused) == ([1, 2], [])


def after_a_failover(*more: dict[str, Any]) -> Decoding:
    """A stream of one partition, which went on with another server at lower places and has two partitions now."""
    reader = Decoding(KEYED)
    reader.send(*(mysql(OLD, 400 + each, each, 1) for each in range(8)))
    reader.send(*(mysql(NEW, 400 + each, each, 2) for each in range(8)))
    reader.send(mysql(NEW, 500, 8, 3), *more)
    assert reader.refused == []
    return Decoding(KEYED, orders(), partitions=2, registered=reader.registered)


@pytest.mark.parametrize("server", [2, 3])
@pytest.mark.parametrize(("op", "partition"), [("u", 1), ("c", 1), ("u", 0), ("t", 0), ("t", 1)])
def test_lower_places_that_one_partition_accepted_are_refused_in_several(server: int, op: str, partition: int) -> None:
    """Rows from before have versions at the higher places, above which nothing of the new server would be."""
    grown = after_a_failover()
    grown.send(mysql(NEW, 600, 2, server, op=op), mysql(NEW, 700, 2, server), partition=partition)
    assert grown.rows == []
    expected = f"come from the server {server}, at lower places in its log than those before"
    assert [expected in why and "the log of the server 1" in why for why in grown.refused] == [True, True]


@pytest.mark.parametrize("partition", [0, 1])
def test_a_server_whose_log_has_passed_the_one_before_goes_on(partition: int) -> None:
    later = after_a_failover()
    later.send(mysql(OLD, 600, 2, 2), partition=partition)
    passed = after_a_failover(mysql(OLD, 800, 2, 2))
    passed.send(mysql(OLD, 700, 2, 2), partition=partition)
    assert (ids(later), ids(passed), later.refused, passed.refused) == ([2], [2], [], [])


def test_servers_with_one_log_are_refused_in_no_partition() -> None:
    """Lines that one server copied from others name those, and come later in one stream partition than in another."""
    reader = Decoding(KEYED, partitions=2)
    reader.send(mysql(OLD, 400, 1, 1), mysql(OLD, 500, 2, 2), mysql(OLD, 600, 3, 1))
    reader.send(mysql(OLD, 450, 4, 2), mysql(OLD, 550, 5, 3), partition=1)
    assert (ids(reader), reader.refused) == ([1, 2, 3, 4, 5], [])


def of_an_earlier_version() -> dict[int, dict[TableName, str]]:
    """What a version registered that recorded no servers, before or after a failover to lower places."""
    reader = Decoding(KEYED)
    reader.send(mysql(OLD, 400, 1, 1))
    memory = PartitionMemory.decode(reader.registered[0][EVENTS])
    memory.servers = ()
    return {0: {EVENTS: memory.encode()}}


def test_lower_places_that_an_earlier_version_accepted_are_refused_in_several_partitions() -> None:
    reader = Decoding(KEYED, registered=of_an_earlier_version())
    reader.send(mysql(NEW, 500, 2, 2))
    assert (ids(reader), reader.refused) == ([2], [])
    for partition in range(2):
        grown = Decoding(KEYED, partitions=2, registered=reader.registered)
        grown.send(mysql(NEW, 600, 3, 2), partition=partition)
        (why,) = grown.refused
        assert "come from the server 2, at lower places in its log than those before" in why
        assert "expected the log of the server before" in why


def test_a_server_that_only_sends_again_after_an_upgrade_counts_as_the_one_before() -> None:
    reader = Decoding(KEYED, registered=of_an_earlier_version())
    reader.send(mysql(OLD, 300, 1, 1), mysql(OLD, 350, 2, 1), mysql(OLD, 500, 3, 1))
    assert (ids(reader), reader.refused) == ([1, 2, 3], [])
    assert PartitionMemory.decode(reader.registered[0][EVENTS]).servers == (1,)


def test_a_refused_key_change_of_a_server_at_lower_places_deletes_its_old_row() -> None:
    """The stream has one partition, so the order of its lines decides, and nothing newer is elsewhere."""
    table = TableSettings(name=str(EVENTS), id=("id",), columns={"id": "int8", "n": "int4"})
    first = Decoding(table)
    first.send(mysql(OLD, 400, 1, 1))
    second = Decoding(TableSettings(name=str(EVENTS), id=("id",)), registered=first.registered)
    delete = {**mysql(NEW, 400, 1, 2, op="d"), "before": {"id": 1, "n": 1}, "after": None}
    create = {**mysql(NEW, 400, 2, 2), "after": {"id": 2, "n": "x"}}
    second.send(delete, key={"id": 1}, headers={"__debezium.newkey": json.dumps({"id": 2})})
    second.send(create, key={"id": 2}, headers={"__debezium.oldkey": json.dumps({"id": 1})})
    lines = [unfit for events in second.events for unfit in events.unfit]
    entries = [KeptText(quarantine_id=number, event=line) for number, line in enumerate(lines)]
    known = KnownTable(name=EVENTS, source_id=0, key=("id",), published_as="", schema=None, horizon="")
    source = EventsAlone(stream="shop", kind="kafka", tables=(table,))
    (decoded,) = source.decode_quarantined(known, entries, columns=(), stream_partitions=range(1))
    assert [(row["_cdc_op"], row["id"], row["_cdc_version"]) for row in decoded.rows.to_pylist()] == [
        ("d", 1, lines[1].version)
    ]
    assert (decoded.fitting, [*decoded.refused]) == ([0], [1])
