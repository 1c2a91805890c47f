"""Two pipelines over one source and one metadata store: each applies its own slices, and keeps a lake of its own."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.errors import SettingsError, UsageError
from cdc_pipeline.launcher.postgres import PostgresServer
from tests.crash.world import World, apply_all, memory_lake, take_snapshot
from tests.support.ledgers import forget_store
from tests.support.pipelines import consume, pipeline_settings, set_up_and_consume
from tests.support.postgres import fresh_store
from tests.support.streams import database_of, run_sql

TABLES = [{"name": "public.orders"}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    one: World
    other: World


@pytest.fixture
def both(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[Neighbours]:
    """Both have a snapshot of the same table; only one has registered what came behind it."""
    run_sql(database, "CREATE TABLE orders (id int PRIMARY KEY, note text)", "INSERT INTO orders VALUES (1, 'old')")
    with fresh_store(postgres) as store_url:
        worlds = [
            World(settings=settings_of(tmp_path, database, name), source_url=database, store_url=store_url)
            for name in ("one", "other")
        ]
        for world in worlds:
            begin(world)
        run_sql(database, "INSERT INTO orders VALUES (2, 'new')")
        yield Neighbours(one=worlds[0], other=worlds[1])


def settings_of(folder: Path, url: str, name: str, *, lake: str | None = None) -> Any:
    ends = f"{database_of(url)}_{name}"
    return pipeline_settings(
        folder, url, TABLES, name=name, lake=lake or f"lake_{name}", source={"publication": ends, "slot": ends}
    )


def in_lake_of_one(both: Neighbours, table: str) -> World:
    """A third pipeline that lists this table, and keeps its own in the lake of the first one."""
    ends = f"{database_of(both.one.source_url)}_third"
    settings = pipeline_settings(
        both.one.settings.folder,
        both.one.source_url,
        [{"name": table}],
        name="third",
        lake="lake_one",
        source={"publication": ends, "slot": ends},
    )
    return replace(both.one, settings=settings)


def files_of_one(both: Neighbours) -> list[Path]:
    return sorted(path for path in (both.one.settings.folder / "lake_one").rglob("*") if path.is_file())


def begin(world: World) -> None:
    with world.process() as pipeline:
        pipeline.source_setup().set_up()
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, pipeline.table_names())


def ids_in_lake(world: World) -> list[int]:
    with world.process() as pipeline:
        (name,) = pipeline.table_names()
        return sorted(row["id"] for row in memory_lake(pipeline).rows(pipeline.lake_table(name)))


def test_apply_of_one_takes_no_slice_of_the_other(both: Neighbours) -> None:
    with both.one.process() as pipeline:
        consume(pipeline)
    with both.other.process() as pipeline:
        (name,) = pipeline.table_names()
        assert pipeline.slice_runs().run(name)["claims"] == 0
    assert (ids_in_lake(both.one), ids_in_lake(both.other)) == ([1], [1])
    with both.one.process() as pipeline:
        apply_all(pipeline)
    assert (ids_in_lake(both.one), ids_in_lake(both.other)) == ([1, 2], [1])
    with both.other.process() as pipeline:
        consume(pipeline)
        apply_all(pipeline)
    assert ids_in_lake(both.other) == [1, 2]


def test_what_stops_one_of_them_is_no_news_of_the_other(both: Neighbours) -> None:
    with both.one.process() as pipeline:
        (name,) = pipeline.table_names()
        pipeline.store.stale_tables.mark(pipeline.store.tables.table(name).table_id, "damaged")
        pipeline.store.streams.raise_alarm("one", "the slot is gone")
    with both.other.process() as pipeline:
        (row,) = pipeline.store.inspection.run("lag")
        assert (row["state"], row["stream_alarm"], row["reason"]) == ("live", None, None)


@pytest.mark.parametrize("stores", ["one store", "a store of its own"])
def test_a_lake_in_which_another_pipeline_has_the_table_is_refused_by_name(both: Neighbours, stores: str) -> None:
    if stores == "a store of its own":
        forget_store(both.one.store_url)
    settings = settings_of(both.one.settings.folder, both.one.source_url, "third", lake="lake_one")
    third = replace(both.one, settings=settings)
    with third.process() as pipeline, pytest.raises(SettingsError) as refused:
        pipeline.source_setup().set_up()
    assert f"{database_of(third.source_url)}.public.orders in the lake file:" in refused.value.found
    assert refused.value.found.endswith("/lake_one belongs to the pipeline one")
    assert third.store_query("SELECT count(*) FROM cdc.source_table WHERE stream = 'third'") == [(0,)]


def test_a_removed_pipeline_takes_no_table_of_another_with_it(both: Neighbours) -> None:
    before = files_of_one(both)
    third = in_lake_of_one(both, "public.orders")
    with third.process() as pipeline:
        with pytest.raises(SettingsError, match=r"orders in the lake .* belongs to the pipeline one"):
            pipeline.removal().remove_pipeline(with_lake=True)
        pipeline.removal().remove_pipeline(with_lake=False)
    assert files_of_one(both) == before
    assert ids_in_lake(both.one) == [1]


@pytest.mark.parametrize(("table", "refusal"), [("orders", SettingsError), ("orderz", UsageError)])
def test_a_table_that_this_pipeline_never_had_is_not_removed_from_the_lake(
    both: Neighbours, table: str, refusal: type[Exception]
) -> None:
    run_sql(both.one.source_url, "CREATE TABLE customers (id int PRIMARY KEY)")
    before = files_of_one(both)
    third = in_lake_of_one(both, "public.customers")
    with third.process() as pipeline:
        (customers,) = pipeline.table_names()
        with pytest.raises(refusal):
            pipeline.removal().remove_table(replace(customers, table=table), with_lake=True)
    assert files_of_one(both) == before
