"""Which columns have statistics after a snapshot, also if its id became other columns or a user has listed them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.new_shape import both_protocols, shape_actions, shape_key
from cdc_pipeline.lake.new_table import create_plain_table
from cdc_pipeline.lake.protocol import Compaction, LakePublication
from cdc_pipeline.lake.schema_change import shape_at
from cdc_pipeline.lake.shape import shape_of_source
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.lake.table_ddl import STATS, listed_stats
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from tests.support.history_tables import publish, put_rows, with_properties
from tests.support.lake import NOW, PEOPLE, table_of, version


def no_session() -> SparkSession:
    raise AssertionError


OWN = "`_cdc_version`"


def with_names_inside(log: DeltaLog, prefix: str) -> None:
    """A commit that gives all columns other names inside files, as that of a claim which writes the rows again."""
    latest = log.latest_version() or 0
    metadata = log.metadata(latest)
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(schema["fields"]):
        field["metadata"] |= {
            "delta.columnMapping.physicalName": f"{prefix}-{field['name']}",
            "delta.columnMapping.id": number,
        }
    info = {"commitInfo": {"timestamp": int(NOW.timestamp() * 1000)}}
    log.append(latest + 1, [info, {"metaData": {**metadata, "schemaString": json.dumps(schema)}}])


@pytest.mark.parametrize(
    ("listed", "kept"),
    [
        ("id,name", f"{OWN},id,name"),
        ("`name` , `id`", f"{OWN},`name` , `id`"),
        ("_cdc_version, id,name", "_cdc_version, id,name"),
        ("`a,b```,name", f"`id`,{OWN},`a,b```,name"),
        ("", f"`id`,{OWN}"),
    ],
)
def test_a_users_list_of_columns_with_statistics_is_kept_and_gets_what_it_lacks(
    tmp_path: Path, listed: str, kept: str
) -> None:
    store = LocalObjectStore(tmp_path)
    lake, table = SparkLake(open_session=no_session, store=store, clock=lambda: NOW, on_step=no_step), table_of()
    log = DeltaLog(store, lake_key(table.name))
    publish(lake, store, table, [(1, "a", 1)], at=5, fence=0)
    with_properties(log, {STATS: listed})
    for at in (6, 7):
        publish(lake, store, table, [(1, "a", 1)], at=at, fence=0)
        assert log.metadata(log.latest_version() or 0)["configuration"][STATS] == kept


@pytest.mark.parametrize(
    ("text", "names"),
    [("", []), ("a", ["a"]), (" a , `b c`,`d``,e`", ["a", "b c", "d`,e"]), ("`s`.`f`,s.g", ["s.f", "s.g"])],
)
def test_listed_columns_are_read_without_quotes_and_spaces(text: str, names: list[str]) -> None:
    assert listed_stats({STATS: text}) == names


@pytest.mark.parametrize("key", [(), ("name",), ("id", "name")])
def test_a_snapshot_with_another_id_changes_which_columns_have_statistics(tmp_path: Path, key: tuple[str, ...]) -> None:
    store = LocalObjectStore(tmp_path)
    lake = SparkLake(open_session=no_session, store=store, clock=lambda: NOW, on_step=no_step)
    before, after = table_of(replace(PEOPLE, key=key)), table_of()
    log = DeltaLog(store, lake_key(after.name))

    def stats() -> str:
        return str(log.metadata(log.latest_version() or 0)["configuration"][STATS])

    publish(lake, store, before, [(1, "a", 1)], at=5, fence=0)
    kept = stats()
    assert kept == ",".join(f"`{name}`" for name in (*key, "_cdc_version"))
    publish(lake, store, after, [(1, "a", 1)], at=6, fence=0)
    assert stats() == (kept if "id" in key else "`id`,`_cdc_version`")


def test_a_snapshot_forgets_which_columns_the_table_followed_before(tmp_path: Path) -> None:
    """Those of a table that was removed, and listed again on a server whose log is behind."""
    store = LocalObjectStore(tmp_path)
    lake, table = SparkLake(open_session=no_session, store=store, clock=lambda: NOW, on_step=no_step), table_of()
    numbered = tuple(replace(column, number=number) for number, column in enumerate(PEOPLE.columns, 1))
    first = replace(PEOPLE, columns=tuple(replace(each, number=40 + (each.number or 0)) for each in numbered))
    for at, schema in {5: replace(first, generation=9), 6: replace(PEOPLE, columns=numbered), 7: PEOPLE}.items():
        publish(lake, store, replace(table, schema=schema), [(1, "a", 1)], at=at, fence=0)
        log = DeltaLog(store, lake_key(table.name))
        shape = shape_at(log, log.latest_version() or 0)
        assert shape == shape_of_source(schema)


def test_a_snapshot_is_not_published_where_its_files_would_read_as_null(tmp_path: Path) -> None:
    """Claims up to the cutoff are applied until it is published; one may have written the table again."""
    store, table = LocalObjectStore(tmp_path), table_of()
    lake = SparkLake(open_session=no_session, store=store, clock=lambda: NOW, on_step=no_step)
    log = DeltaLog(store, lake_key(table.name))
    publish(lake, store, table, [(1, "a", 1)], at=5, fence=0)
    with_names_inside(log, "first")
    staged = put_rows(store, table, "s6", [(2, "b", 2)])
    lake.create_table(table, snapshot_id="s6")
    work = Compaction(snapshot_id="s6", attempt="1", staged_keys=(staged,), target_files=1, version=version(6))
    content = LakePublication(snapshot_id="s6", files=lake.compact(table, work), fence_number=0)
    with_names_inside(log, "second")
    latest = log.latest_version()
    with pytest.raises(SnapshotError, match="first-_cdc_version"):
        lake.publish(table, content)
    assert log.latest_version() == latest
    with_names_inside(log, "first")
    lake.publish(table, content)


def test_a_snapshot_with_other_columns_keeps_what_users_set_and_no_property_of_the_old_columns(tmp_path: Path) -> None:
    table, log = table_of(), DeltaLog(LocalObjectStore(tmp_path), lake_key(table_of().name))
    create_plain_table(log, table, lambda: NOW)
    users = {"delta.enableChangeDataFeed": "true", "delta.logRetentionDuration": "interval 90 days", "owner": "sales"}
    with_properties(log, {**users, "cdc.generation": "7", "delta.constraints.adult": "age > 17"})
    columns = [replace(column, type="text") if column.name == "age" else column for column in table.schema.columns]
    other = replace(table, schema=replace(table.schema, columns=tuple(columns)))
    side = log.beside(shape_key(other, "next"))
    create_plain_table(side, other, lambda: NOW)
    with_properties(side, {"delta.enableRowTracking": "true"})  # the server may give it to all tables
    _, action = shape_actions(log, other, log.latest_version() or 0, "next")
    metadata = action["metaData"]
    assert metadata["configuration"] == side.metadata(0)["configuration"] | users
    assert metadata["description"] == "people"


def test_a_protocol_that_begins_to_list_features_lists_those_that_the_older_one_had_by_its_version() -> None:
    """Delta refuses a table whose change data feed is on and not among the listed features."""
    listed = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["timestampNtz"]}
    new = {**listed, "writerFeatures": ["timestampNtz"]}
    feed = both_protocols({"minReaderVersion": 1, "minWriterVersion": 4}, new)
    assert feed["readerFeatures"] == ["timestampNtz"]
    assert set(feed["writerFeatures"]) == {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "generatedColumns",
        "invariants",
        "timestampNtz",
    }
    assert both_protocols({"minReaderVersion": 2, "minWriterVersion": 5}, new)["readerFeatures"] == [
        "columnMapping",
        "timestampNtz",
    ]
    assert both_protocols({"minReaderVersion": 3, "minWriterVersion": 7}, new)["writerFeatures"] == ["timestampNtz"]
    old = {"minReaderVersion": 1, "minWriterVersion": 2}
    assert both_protocols(old, old) == old
