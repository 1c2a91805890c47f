"""`cdc remove`: a table or the whole pipeline ends on the source, in the metadata store and, if asked, in the lake."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.areas import CDC_EVENT, table_prefix
from cdc_pipeline.metadata_store.store import open_metadata_store
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.world import World, take_snapshot
from tests.support.command_line import CommandLine, query, rows_of_store
from tests.support.command_server import CommandServer
from tests.support.guarded import begin_again, command_line, go_on, guarded_world, in_lake, in_source, name_of, states
from tests.support.ledgers import ledger_of
from tests.support.pipelines import pipeline_settings
from tests.support.streams import postgres_of, run_sql

OK, ERROR, USAGE, BUSY = 0, 1, 2, 4
SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
PUBLICATIONS = "SELECT count(*) FROM pg_publication"
PUBLISHED = "SELECT tablename::text FROM pg_publication_tables ORDER BY 1"


class Killed(BaseException):
    pass


@pytest.fixture
def world(database: str, store_url: str, tmp_path: Path) -> "World":
    with guarded_world(tmp_path, database, store_url) as world:
        return world


def without_orders(world: World) -> World:
    """The same pipeline, whose pipeline.yml lists customers alone."""
    settings = pipeline_settings(world.settings.folder, world.source_url, [{"name": "public.customers"}])
    return World(settings=settings, source_url=world.source_url, store_url=world.store_url)


def remove_orders(world: World, *, with_lake: bool = False) -> None:
    with without_orders(world).process() as pipeline:
        pipeline.removal().remove_table(name_of(world, "orders"), with_lake=with_lake)


def files_of(world: World) -> list[str]:
    lake = world.settings.folder / "lake"
    return sorted(path.relative_to(lake).as_posix() for path in lake.rglob("*") if path.is_file())


def test_a_removed_table_is_gone_from_publication_and_store_and_its_neighbour_goes_on(world: World) -> None:
    before = files_of(world)
    remove_orders(world)
    assert states(world) == {"customers": ("live", None)}
    assert world.query(PUBLISHED) == [("customers",)]
    assert files_of(world) == before
    run_sql(world.source_url, "INSERT INTO orders VALUES (9, 'unseen')", "INSERT INTO customers VALUES (9, 'nine')")
    rest = without_orders(world)
    assert go_on(rest) == {}
    assert in_lake(rest, "customers") == in_source(rest, "customers")
    remove_orders(world, with_lake=True)
    assert [path for path in files_of(world) if "/orders/" in path] == []


@pytest.mark.parametrize("owner", ["listed", "of another pipeline"])
def test_a_removed_table_leaves_the_lake_of_a_table_that_is_named_like_its_history(world: World, owner: str) -> None:
    run_sql(world.source_url, 'CREATE TABLE "orders.history" (id int PRIMARY KEY)')
    named = [{"name": 'public."orders.history"'}]
    another = {"name": "other", "source": {"publication": "other", "slot": postgres_of(world.settings).slot + "_2"}}
    more = {} if owner == "listed" else another
    neighbour = replace(world, settings=pipeline_settings(world.settings.folder, world.source_url, named, **more))
    begin_again(neighbour)
    before = [path for path in files_of(world) if "orders.history" in path]
    assert any(path.startswith("datalake/") for path in before)
    with (neighbour if owner == "listed" else without_orders(world)).process() as pipeline:
        pipeline.removal().remove_table(name_of(world, "orders"), with_lake=True)
    assert [path for path in files_of(world) if "orders.history" in path] == before
    assert [path for path in files_of(world) if "/orders/" in path] == []


def test_a_removed_table_that_comes_back_begins_anew_also_after_a_rebuild(world: World) -> None:
    remove_orders(world, with_lake=True)
    run_sql(world.source_url, "DELETE FROM orders WHERE id = 1", "INSERT INTO orders VALUES (9, 'meanwhile')")
    go_on(without_orders(world))
    with world.process() as pipeline, pipeline.consumer_runs().open():
        pass
    begin_again(world, [name_of(world, "orders")])
    run_sql(world.source_url, "INSERT INTO orders VALUES (10, 'later')")
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders")
    before = ledger_of(world.store_url)
    with world.process() as pipeline:
        pipeline.rebuild().run()
    assert ledger_of(world.store_url) == before
    assert go_on(world) == {}


def test_a_removed_pipeline_leaves_nothing_but_its_lake_and_with_the_lake_nothing(world: World) -> None:
    orders = world.settings.folder / "lake" / table_prefix(CDC_EVENT, name_of(world, "orders"))
    (orders / ".pending-1").write_bytes(b"of a killed put")
    with world.process() as pipeline:
        pipeline.removal().remove_pipeline(with_lake=False)
    assert rows_of_store(world.store_url) == {}
    assert world.query(SLOTS) == world.query(PUBLICATIONS) == [(0,)]
    assert any(path.startswith("datalake/") for path in files_of(world))
    assert not any("stream=" in path for path in files_of(world))
    with world.process() as pipeline:
        assert not pipeline.removal().remove_pipeline(with_lake=True).was_known
    assert files_of(world) == []
    begin_again(world)
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders")


def test_a_pipeline_leaves_nothing_once_the_lake_of_a_table_removed_before_is_removed_too(world: World) -> None:
    """The steps of docs/how-to/remove.md: first the lake of that table, then the pipeline."""
    remove_orders(world)
    remove_orders(world, with_lake=True)
    with without_orders(world).process() as pipeline:
        pipeline.removal().remove_pipeline(with_lake=True)
    assert files_of(world) == []


def test_a_removal_that_was_killed_anywhere_is_ended_by_the_next(world: World) -> None:
    def killed_at(number: int) -> Callable[[str, Moment], None]:
        seen = 0

        def on_step(name: str, moment: Moment) -> None:
            nonlocal seen
            if moment is Moment.AFTER and name not in {"store.open", "table.list", "removal.check"}:
                seen += 1
                if seen == number:
                    raise Killed

        return on_step

    steps = 0
    ended = False
    while not ended:
        steps += 1
        try:
            with world.process(killed_at(steps)) as pipeline:
                pipeline.removal().remove_pipeline(with_lake=True)
            ended = True
        except Killed:
            continue
    assert steps > 1
    assert rows_of_store(world.store_url) == {}
    assert world.query(SLOTS) == world.query(PUBLICATIONS) == [(0,)]
    assert files_of(world) == []


def test_a_publication_that_holds_tables_of_others_only_loses_ours(world: World) -> None:
    name = postgres_of(world.settings).publication
    run_sql(
        world.source_url, "CREATE TABLE theirs (id int PRIMARY KEY)", f'ALTER PUBLICATION "{name}" ADD TABLE theirs'
    )
    with world.process() as pipeline:
        pipeline.removal().remove_pipeline(with_lake=False)
    assert world.query(PUBLISHED) == [("theirs",)]


def test_nothing_is_removed_while_somebody_is_at_work(world: World, command_server: CommandServer) -> None:
    before = rows_of_store(world.store_url)
    cdc = command_line(world, command_server)
    cdc.write_settings(tables=[{"name": f"{cdc.name}.public.customers"}])
    orders = f"{cdc.name}.public.orders"
    with world.process() as pipeline, pipeline.consumer_runs().open():
        before = rows_of_store(world.store_url)
        for words in (("--pipeline",), (orders,)):
            refused = cdc.run("remove", *words)
            assert (refused.exit_code, "a consumer reads the slot" in refused.error) == (BUSY, True)
    with open_metadata_store(world.store_url, stream=world.settings.name) as store:
        table_id = store.tables.table(TableName.parse(orders)).table_id
        store.leases.acquire(table_id, owner="somebody", duration=timedelta(hours=1))
        before = rows_of_store(world.store_url)
        for line in (["--pipeline", "--lake"], [orders]):
            refused = cdc.run("remove", *line)
            assert (refused.exit_code, "somebody is at work until" in refused.error) == (BUSY, True)
    assert rows_of_store(world.store_url) == before
    assert world.query(SLOTS) == world.query(PUBLICATIONS) == [(1,)]


def test_nothing_is_removed_while_a_snapshot_runs_whose_tasks_all_wait(
    world: World, command_server: CommandServer
) -> None:
    planned = Failpoint(Site("snapshot_task.add", Moment.AFTER, 1))
    with pytest.raises(Crash), world.process(planned) as pipeline:
        take_snapshot(pipeline, [name_of(world, "orders")])
    world.bury_the_dead()
    cdc = command_line(world, command_server)
    cdc.write_settings(tables=[{"name": f"{cdc.name}.public.customers"}])
    orders = f"{cdc.name}.public.orders"
    before = rows_of_store(world.store_url)
    for line in (["--pipeline", "--lake"], [orders, "--lake"]):
        refused = cdc.run("remove", *line)
        assert (refused.exit_code, "is being taken; if its run was killed" in refused.error) == (BUSY, True)
    assert rows_of_store(world.store_url) == before
    world.silence_snapshots()
    assert cdc.run("remove", orders, "--lake").exit_code == OK
    assert states(world) == {"customers": ("live", None)}


def test_what_is_to_be_removed_is_said_and_no_longer_listed(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == OK
    before = cdc.state()
    table = f"{cdc.name}.public.orders"
    for words in ((), ("--pipeline", table), ("orders",), (table, "--source-is-gone")):
        assert cdc.run("remove", *words).exit_code == USAGE
    assert "--source-is-gone with the table" in cdc.run("remove", table, "--source-is-gone").error
    refused = cdc.run("remove", table).error
    assert (f"pipeline.yml lists {table}" in refused, "stop the consumer, then remove it" in refused) == (True, True)
    assert cdc.state() == before
    removed = cdc.run("remove", "--pipeline", "--json")
    assert (removed.exit_code, removed.rows[0]["was_known"]) == (OK, True)
    assert query(cdc.source_url, SLOTS) == query(cdc.source_url, PUBLICATIONS) == [(0,)]
    again = cdc.run("remove", "--pipeline", "--json")
    assert (again.exit_code, again.rows[0]["was_known"]) == (OK, False)


def test_a_pipeline_whose_source_is_gone_for_ever_is_removed_all_the_same(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == OK
    nowhere = {"kind": "postgres", "url": "postgresql://cdc@127.0.0.1:1/shop", "publication": "a", "slot": "a"}
    cdc.write_settings(source=nowhere)
    assert "the source does not answer" in cdc.run("remove", "--pipeline").error
    assert cdc.run("remove", "--pipeline", "--source-is-gone").exit_code == OK
    assert rows_of_store(cdc.store_url) == {}
