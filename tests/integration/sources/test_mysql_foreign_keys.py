"""Foreign keys by which InnoDB changes rows without events: their tables are refused, or stop when they get one."""

import pytest

from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from cdc_pipeline.errors import StreamMoved
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.wiring import Pipeline
from tests.support.mariadb import is_mariadb, is_older
from tests.support.mysql_source import MysqlShop, documented_reader, states
from tests.support.pipelines import consume

KEY = "FOREIGN KEY (p) REFERENCES parent (id) ON UPDATE RESTRICT ON DELETE"


@pytest.fixture
def family(shop: MysqlShop) -> MysqlShop:
    shop.run("CREATE TABLE parent (id INT PRIMARY KEY)", "CREATE TABLE child (id INT PRIMARY KEY, p INT)")
    return shop


def test_a_user_with_the_documented_rights_is_told_of_a_key_that_cascades(family: MysqlShop) -> None:
    family.run("CREATE TABLE `odd ``one` (id INT PRIMARY KEY COMMENT 'ON DELETE, CASCADE', p INT)")
    family.run("ALTER TABLE child ADD b VARBINARY(5) NOT NULL DEFAULT x'00ff' FIRST")
    for table, rule in (("child", "CASCADE"), ("`odd ``one`", "SET NULL")):
        family.run(f"ALTER TABLE {table} ADD CONSTRAINT `key, {rule}` {KEY} {rule}")
    with documented_reader(family) as source, family.opened("parent", "child", "odd `one", source=source) as pipeline:
        found = pipeline.source_setup().set_up()
    assert found.tables == (family.name("parent"),)
    assert {name.table for name in found.refused} == {"child", "odd `one"}
    for refused, rule in zip(found.refused.values(), ("CASCADE", "SET NULL"), strict=True):
        assert f"has the foreign key key, {rule} with CASCADE or SET NULL" in refused.found


@pytest.mark.parametrize("rule", ["CASCADE", "SET NULL"])
def test_a_key_that_cascades_stops_its_table_from_where_it_was_added(family: MysqlShop, rule: str) -> None:
    """Another change of the table in the same statement is followed; the key is gone before anybody looks."""
    with family.opened("child", "parent") as pipeline:
        pipeline.source_setup().set_up()
        with pipeline.consumer_runs().open() as consumer:
            family.run("INSERT INTO parent VALUES (1), (2)", "INSERT INTO child VALUES (10, 1), (20, 2)")
            stream_to_slices_until_idle(consumer)
        family.run(f"ALTER TABLE child ADD more INT, ADD CONSTRAINT f {KEY} {rule}")
        family.run("DELETE FROM parent WHERE id = 1")
        family.run("ALTER TABLE child DROP FOREIGN KEY f")
        consume(pipeline)
        assert states(pipeline, family, "child", "parent") == [TableState.STALE, TableState.REGISTERED]


def cascade_meanwhile(pipeline: Pipeline, family: MysqlShop) -> None:
    """Reads the stream while the table gets the key, and a row of it goes by the key."""
    with pipeline.consumer_runs().open() as consumer:
        family.run("INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (10, 1)")
        stream_to_slices_until_idle(consumer)
        family.run(f"ALTER TABLE child ADD {KEY} CASCADE", "DELETE FROM parent")
        stream_to_slices_until_idle(consumer)


def test_a_running_consumer_stops_a_table_that_gets_a_key_that_cascades(family: MysqlShop) -> None:
    with family.opened("child") as pipeline:
        pipeline.source_setup().set_up()
        with pytest.raises(StreamMoved, match="CASCADE"):
            cascade_meanwhile(pipeline, family)
        consume(pipeline)
        assert states(pipeline, family, "child") == [TableState.STALE]


def test_a_column_that_references_another_table_stops_its_own_only_where_the_server_makes_a_key_of_that(
    family: MysqlShop,
) -> None:
    """The key, where there is one, is gone before anybody looks."""
    with family.opened("child", "parent") as pipeline:
        pipeline.source_setup().set_up()
        with pipeline.consumer_runs().open() as consumer:
            family.run("INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (10, 1)")
            stream_to_slices_until_idle(consumer)
        family.run("ALTER TABLE child ADD q INT REFERENCES parent (id) ON DELETE CASCADE")
        family.run("UPDATE child SET q = 1", "DELETE FROM parent")
        makes_key = not family.run("SELECT 1 FROM child")
        assert makes_key == (is_mariadb(family.url) or not is_older(family.url, mysql=(9,)))
        if makes_key:
            family.run("ALTER TABLE child DROP FOREIGN KEY child_ibfk_1")
        consume(pipeline)
        assert states(pipeline, family, "child") == [TableState.STALE if makes_key else TableState.REGISTERED]
