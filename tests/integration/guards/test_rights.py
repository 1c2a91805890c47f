"""What the pipeline's role may not read stops no stream: the stream needs no right to read, only copies do."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc_pipeline.errors import SourceError
from cdc_pipeline.metadata_store.states import SnapshotState
from snapshot.wiring import snapshot_runs
from tests.crash.world import World, take_snapshot
from tests.support.guarded import CREATE, begin_again, go_on, in_lake, name_of, world_of
from tests.support.streams import database_of, run_sql

PARTED = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (1000)",
    "INSERT INTO orders VALUES (1, 'one')",
)
HIGH = "CREATE TABLE high PARTITION OF orders FOR VALUES FROM (1000) TO (2000)"
PUBLISH = 'CREATE PUBLICATION "{name}" FOR TABLE orders WITH (publish_via_partition_root = true)'
WARNED = "the table's next copy would fail"
LATER = {
    "a partition without a grant": (HIGH, "cannot be read", "GRANT SELECT ON high TO {role}"),
    "row-level security": ("ALTER TABLE low ENABLE ROW LEVEL SECURITY", "row-level", "ALTER ROLE {role} BYPASSRLS"),
}


@pytest.fixture
def role(database: str) -> Iterator[str]:
    """A role that may replicate and read nothing."""
    role = f"reader_of_{database_of(database)}"
    run_sql(database, f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'")
    yield role
    run_sql(database, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def world_as(role: str, folder: Path, database: str, store_url: str, *statements: str) -> World:
    """A pipeline over the table orders as this role, behind statements of the administrator."""
    run_sql(database, *statements, PUBLISH.format(name=database_of(database)))
    url = f"postgresql://{role}:x@{database.partition('@')[2]}"
    return world_of(folder, url, store_url, [{"name": "public.orders"}])


def world_of_both(role: str, folder: Path, database: str, store_url: str) -> tuple[World, tuple[str, ...]]:
    """A pipeline over orders and customers as this role, and statements that make orders again, unpublished."""
    grant = f"GRANT SELECT ON orders, customers TO {role}"
    run_sql(database, *CREATE, grant, PUBLISH.format(name=database_of(database)).replace("orders", "orders, customers"))
    world = world_of(folder, f"postgresql://{role}:x@{database.partition('@')[2]}", store_url)
    begin_again(world)
    return world, ("DROP TABLE orders", CREATE[0], grant)


def test_a_table_that_the_role_may_not_publish_keeps_no_other_from_its_new_snapshot(
    role: str, database: str, store_url: str, tmp_path: Path
) -> None:
    world, make_again = world_of_both(role, tmp_path, database, store_url)
    run_sql(database, *make_again, "ALTER TABLE customers ALTER note TYPE int USING 7")
    assert go_on(world).keys() == {"orders", "customers"}
    with world.process() as pipeline:
        runs = snapshot_runs(pipeline, poll_interval=timedelta(milliseconds=50))
        (taken,) = runs.take_wanted(pipeline.table_names(), slots=1)
        assert (taken.table_id, taken.state) == (
            pipeline.store.tables.table(name_of(world, "customers")).table_id,
            SnapshotState.PUBLISHED,
        )
        again = pipeline.source_setup().set_up(begin_again=[name_of(world, "orders")])
        assert "must be owner of" in str(again.refused[name_of(world, "orders")])
        assert again.statements == ()
    run_sql(database, f'ALTER PUBLICATION "{database_of(database)}" ADD TABLE orders')
    begin_again(world, [name_of(world, "orders")])
    assert go_on(world) == {}
    assert in_lake(world, "orders") == []
    assert [row["note"] for row in in_lake(world, "customers")] == [7]


def test_a_table_that_the_role_may_not_publish_keeps_no_other_from_a_new_beginning(
    role: str, database: str, store_url: str, tmp_path: Path
) -> None:
    world, make_again = world_of_both(role, tmp_path, database, store_url)
    run_sql(database, "INSERT INTO customers VALUES (3, 'three')")
    assert go_on(world) == {}
    run_sql(database, *make_again)
    with world.process() as pipeline, capture_logs() as logs:
        pipeline.source_setup().begin_stream_again()
    refused = [log["table"] for log in logs if log["event"] == "table not read"]
    assert refused == [str(name_of(world, "orders"))]
    begin_again(world, [name_of(world, "customers")])
    assert go_on(world).keys() == {"orders"}


def warnings(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(log["found"]) for log in logs if log["event"] == WARNED]


def copied(world: World) -> list[object]:
    """Ids that `verify` and `repair` read of the source."""
    with world.process() as pipeline:
        name = name_of(world, "orders")
        known = pipeline.registered_stream().tables()[name]
        assert known.schema is not None
        with pipeline.source.hold_position("test", name="test") as held, pipeline.source.copy_at(held.exported) as copy:
            assert copy.columns(known) == known.schema.columns
            return [row["id"] for block in copy.rows(name, known.schema) for row in block.rows.to_pylist()]


@pytest.mark.parametrize("kind", LATER)
def test_a_table_streams_on_when_a_right_to_copy_it_is_lost_and_a_warning_names_the_right(
    kind: str, role: str, database: str, store_url: str, tmp_path: Path
) -> None:
    change, words, remedy = LATER[kind]
    world = world_as(role, tmp_path, database, store_url, *PARTED, f"GRANT SELECT ON orders, low TO {role}")
    begin_again(world)
    run_sql(database, change, "INSERT INTO orders VALUES (2, 'two')", "UPDATE orders SET note = 'I' WHERE id = 1")
    with capture_logs() as logs:
        assert go_on(world) == {}
    assert [row["note"] for row in in_lake(world, "orders")] == ["I", "two"]
    assert warnings(logs)
    assert all(words in warning for warning in warnings(logs))
    with world.process() as pipeline:
        (failed,) = take_snapshot(pipeline, pipeline.table_names())
    assert "the source refuses a copy" in (failed.error or "")
    run_sql(database, remedy.format(role=role))
    with capture_logs() as logs:
        begin_again(world, [name_of(world, "orders")])
        assert go_on(world) == {}
    assert warnings(logs) == []
    assert [row["note"] for row in in_lake(world, "orders")] == ["I", "two"]


def test_neither_rights_nor_policies_of_a_partitioned_table_count_where_its_partitions_can_be_read(
    role: str, database: str, store_url: str, tmp_path: Path
) -> None:
    policy = ("ALTER TABLE orders ENABLE ROW LEVEL SECURITY", "CREATE POLICY above_one ON orders USING (id > 1)")
    statements = (*PARTED, HIGH, "INSERT INTO orders VALUES (1001, 'new')", *policy)
    world = world_as(role, tmp_path, database, store_url, *statements, f"GRANT SELECT ON low, high TO {role}")
    with world.process() as pipeline:
        assert [text for text in pipeline.source.missing_statements(pipeline.registered_stream()) if role in text] == []
    begin_again(world)
    assert copied(world) == [1001, 1]
    run_sql(database, "UPDATE orders SET note = 'I' WHERE id = 1")
    assert go_on(world) == {}
    assert [row["note"] for row in in_lake(world, "orders")] == ["I", "new"]


def test_a_partitioned_table_without_partitions_is_copied_as_empty(
    role: str, database: str, store_url: str, tmp_path: Path
) -> None:
    world = world_as(role, tmp_path, database, store_url, PARTED[0], f"GRANT SELECT ON orders TO {role}")
    begin_again(world)
    assert copied(world) == []


def test_a_member_of_the_role_that_owns_a_table_sees_the_rows_that_its_policies_hide(
    role: str, database: str, store_url: str, tmp_path: Path
) -> None:
    owner = f"owner_of_{database_of(database)}"
    run_sql(database, f"CREATE ROLE {owner}")
    statements = ("ALTER TABLE low ENABLE ROW LEVEL SECURITY", f"GRANT SELECT ON low TO {role}")
    world = world_as(role, tmp_path, database, store_url, *PARTED, *statements)
    with world.process() as pipeline, pytest.raises(SourceError, match=r"row-level .* public\.low") as refused:
        pipeline.source_setup().set_up()
    assert "make it a member of the role that owns the table" in (refused.value.remedy or "")
    run_sql(database, f"ALTER TABLE low OWNER TO {owner}", f"GRANT {owner} TO {role}")
    begin_again(world)
    assert copied(world) == [1]
    run_sql(database, f"DROP OWNED BY {owner}", f"DROP ROLE {owner}")
