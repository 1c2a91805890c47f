"""pipeline.yml: every mistake is refused by name, with its line and a hint; CDC_ variables lie over the file."""

from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.debezium_files import DebeziumFilesSource
from cdc_pipeline.settings.file import json_schema, load_settings, parse_settings, settings_path
from cdc_pipeline.settings.work import EMBEDDED, parse_duration
from tests.support.settings_texts import FILE, WHOLE, changed, parsed, refusal
from tests.support.streams import postgres_of

TEMPLATES = sorted((Path(__file__).parents[3] / "cdc_pipeline" / "demo").glob("*.yml"))


def test_a_column_that_another_setting_uses_cannot_be_excluded() -> None:
    for other in (
        {"id": ["a"]},
        {"create_time": "a"},
        {"update_time": "a"},
        {"as_text": ["a"]},
        {"columns": {"a": "text"}},
        {"partition_by": [{"column": "a"}]},
    ):
        with pytest.raises(ValueError, match="exclude_columns names 'a', which another setting"):
            TableSettings.model_validate({"name": "d.s.t", "exclude_columns": ["b", "a"], **other})
    table = TableSettings.model_validate({"name": "d.s.t", "exclude_columns": ["b", "a", "b"], "as_text": ["c"]})
    assert (table.exclude_columns, table.read_as_text) == (("a", "b"), ("c", "a", "b"))


def test_what_is_left_out_has_a_default() -> None:
    settings = parsed()
    assert settings.slice_length == timedelta(minutes=1)
    assert (settings.metadata_store, settings.spark, settings.source.url) == (EMBEDDED, EMBEDDED, EMBEDDED)
    assert settings.tables[1].deletes == "hard"
    assert settings.tables[1].id == ()


def test_a_relative_lake_lies_beside_the_file() -> None:
    assert parsed().lake_url == "file:///somewhere/lake"
    assert parsed(changed("lake: lake", "lake: file:///data/lake/")).lake_url == "file:///data/lake"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("name: shop\n", "name: Shop!\n", "line 1: name"),
        ("slot: cdc_shop", "slot: cdc-shop", "line 4: source.slot"),
        ("publication: cdc_shop", "publication: 'cdc shop'", "line 4: source.publication"),
        ("kind: postgres", "kind: oracle", "line 4: source.kind"),
    ],
)
def test_a_name_that_the_source_could_not_take_is_refused(old: str, new: str, line: str) -> None:
    assert line in refusal(changed(old, new))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("slice_length", "slice_lenght", "line 3: the key 'slice_lenght' is unknown; did you mean 'slice_length'?"),
        ("slot: cdc_shop", "slott: a", "line 4: the key 'source.slott' is unknown; did you mean 'slot'?"),
        ("    id: [order_id]", "    idd: [order_id]", "line 7: the key 'tables.0.idd' is unknown; did you mean 'id'?"),
        ("unit: month", "step: month", "line 8: the key 'tables.0.partition_by.0.step' is unknown; known here: column"),
    ],
)
def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_known_one(old: str, new: str, words: str) -> None:
    assert words in refusal(changed(old, new))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("name: shop\n", "", "line 1: 'name' is missing; add it"),
        ("kind: postgres, ", "", "line 4: 'source.kind' is missing; add it"),
        ("  - name: shop.public.customers", "  - deletes: soft", "line 9: 'tables.1.name' is missing; add it"),
    ],
)
def test_a_missing_key_is_refused_with_the_line_where_it_belongs(old: str, new: str, words: str) -> None:
    assert words in refusal(changed(old, new))


def test_a_file_without_tables_is_refused() -> None:
    head = WHOLE.split("tables:", maxsplit=1)[0]
    assert "'tables' is missing" in refusal(head)
    assert "line 5: tables" in refusal(head + "tables: []")


def test_a_table_that_is_listed_twice_is_refused_by_name() -> None:
    message = refusal(changed("shop.public.customers", "shop.public.orders"))
    assert "line 5: tables: the table shop.public.orders is listed 2 times: keep one entry" in message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[order_id]", "[order_id, order_id]", "line 6: tables.0: id names a column twice: keep one of them"),
        (
            "[{column: created_at, unit: month}]",
            "[{column: x}, {column: x}]",
            "line 6: tables.0: partition_by names a column twice: keep one of them",
        ),
    ],
)
def test_a_column_that_is_named_twice_is_refused(old: str, new: str, words: str) -> None:
    assert words in refusal(changed(old, new))


def test_a_column_may_divide_the_table_in_two_ways() -> None:
    parsed(changed("[{column: created_at, unit: month}]", "[{column: x, unit: year}, {column: x, unit: month}]"))


def test_a_lease_that_no_clock_can_count_is_refused() -> None:
    assert "worker.lease" in refusal(f"{WHOLE}worker: {{lease: 999999d}}\n")
    assert parsed(f"{WHOLE}worker: {{lease: 1d}}\n").worker.lease == timedelta(days=1)


def test_a_key_that_is_there_twice_is_refused_with_the_line_of_the_second() -> None:
    assert "line 3: the key 'lake' occurs twice; keep one" in refusal(changed("slice_length: 60s", "lake: elsewhere"))
    assert "line 8: the key 'name' occurs twice" in refusal(changed("    partition_by", "    name: a.b.c\n    id"))


@pytest.mark.parametrize("wrong", ["60", "1.5s", "-5s", "0s", "s", "60 seconds", "1w", "''", "[1]", "9999999999999d"])
def test_a_bad_duration_is_refused_with_its_line_and_an_example(wrong: str) -> None:
    message = refusal(changed("60s", wrong))
    assert "line 3: slice_length" in message
    assert "60s or 5m" in message


@pytest.mark.parametrize("wrong", ["orders", "public.orders", "a.b.c.d", "shop..orders", "'..'"])
def test_a_table_name_of_another_form_is_refused(wrong: str) -> None:
    message = refusal(changed("shop.public.customers", wrong))
    assert "line 9: tables.1" in message
    assert "is not of the form db.schema.table" in message


def test_tables_of_two_databases_are_refused_by_name() -> None:
    message = refusal(changed("shop.public.customers", "bank.public.customers"))
    assert "line 5: tables: the tables are in 2 databases (bank, shop): a pipeline reads only one" in message


def test_every_mistake_is_named_at_once() -> None:
    message = refusal(changed("60s", "soon").replace("unit: month", "unit: decade").replace("lake: lake", "lak: lake"))
    assert len(message.splitlines()) == 4
    assert all(words in message for words in ("'lak' is unknown", "'lake' is missing", "slice_length", "unit"))


def test_a_list_is_not_also_too_short_when_its_only_entry_is_wrong() -> None:
    only = "name: shop\nlake: lake\nsource: {kind: postgres}\ntables:\n  - name: shop.public.orders\n    key: [id]\n"
    assert "'tables.0.key' is unknown" in refusal(only)
    assert len(refusal(only).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "just words", "- a\n- b\n", "name: [", "\tname: x"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    assert str(FILE) in refusal(text)


def test_a_key_that_is_no_text_is_refused() -> None:
    assert "the key '7' is unknown" in refusal(WHOLE + "7: seven\n")


def test_a_file_that_is_not_there_says_how_to_give_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*pipeline\.yml: No such file.*--config or CDC_CONFIG"):
        load_settings(tmp_path / "pipeline.yml", {})


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(SettingsError, match="is not UTF-8"):
        load_settings(path, {})


def test_a_variable_lies_over_the_file() -> None:
    environment = {"CDC_SLICE_LENGTH": "5m", "cdc_lake": "/other"}
    assert parsed(WHOLE, environment).slice_length == timedelta(minutes=5)
    assert parsed(WHOLE, environment).lake == "/other"


def test_a_nested_variable_changes_one_key_and_leaves_its_neighbours() -> None:
    settings = parsed(WHOLE, {"CDC_SOURCE__STREAM_PARTITIONS": "3", "CDC_WORKER__LEASE": "90s"})
    source = postgres_of(settings)
    assert (source.stream_partitions, source.slot) == (3, "cdc_shop")
    assert settings.worker.lease == timedelta(seconds=90)
    assert settings.worker.claim_slices == 1_000


def test_a_variable_may_bring_what_the_file_left_out() -> None:
    assert parsed(changed("name: shop\n", ""), {"CDC_NAME": "shop"}).name == "shop"


def test_a_wrong_variable_is_refused_like_a_wrong_key() -> None:
    assert "the key 'source.slott' is unknown" in refusal(WHOLE, {"CDC_SOURCE__SLOTT": "x"})
    assert "slice_length" in refusal(WHOLE, {"CDC_SLICE_LENGTH": "soon"})
    assert 'a CDC_ variable cannot be read: error parsing value for field "tables"' in refusal(
        WHOLE, {"CDC_TABLES": "not json"}
    )


FILES = """\
name: shop
lake: lake
source: {kind: debezium_files, path: events/}
tables:
  - name: shop.public.orders
    columns: {id: bigint, amount: "numeric(12)", at: timestamp with time zone, tags: "text[]"}
"""


def test_files_are_ordered_and_truncates_applied_where_nothing_else_is_said() -> None:
    settings = parsed(FILES)
    assert isinstance(settings.source, DebeziumFilesSource)
    assert (settings.source.path, settings.source.ordered, settings.source.sequence_by) == ("events/", True, ())
    assert settings.tables[0].truncate == "apply"


def test_a_type_is_kept_by_its_canonical_name() -> None:
    columns = parsed(FILES).tables[0].columns
    assert dict(columns) == {"id": "int8", "amount": "numeric(12,0)", "at": "timestamptz", "tags": "text[]"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("path: events/", "path: events/, ordered: false", "line 3: source: ordered: false needs sequence_by"),
        ("path: events/", "path: events/, sequence_by: [ts_ms]", "line 3: source: sequence_by is for ordered: false"),
        ("path: events/", "path: events/, late_by: 7d", "line 3: source: late_by is for ordered: false"),
        (", path: events/", "", "line 3: 'source.path' is missing; add it"),
        ("path: events/", "path: events/, slot: a", "the key 'source.slot' is unknown; known here: kind, late_by"),
        ("id: bigint", "id: bigtin", "line 6: tables.0.columns.id: unknown type 'bigtin'"),
        ("id: bigint", "_cdc_op: bigint", "line 6: tables.0.columns: the column '_cdc_op' begins with _cdc_"),
        ("kind: debezium_files, path: events/", "kind: postgres", "the table shop.public.orders has columns"),
    ],
)
def test_what_files_cannot_do_is_refused_with_its_line(old: str, new: str, words: str) -> None:
    assert old in FILES
    assert words in refusal(FILES.replace(old, new))


def test_a_history_without_deletion_vectors_is_refused_with_its_line() -> None:
    text = FILES.replace("  - name:", "  - history: true\n    deletion_vectors: false\n    name:")
    assert "a history needs deletion vectors" in refusal(text)


def test_an_id_with_an_array_is_refused_with_its_line() -> None:
    text = FILES.replace("  - name:", "  - id: [id, tags]\n    name:")
    assert "line 5: tables.0: id names 'tags', an array: slices and the lake are sorted by id" in refusal(text)


def test_a_list_in_a_variable_is_json() -> None:
    environment = {"CDC_SOURCE__ORDERED": "false", "CDC_SOURCE__SEQUENCE_BY": '["source.lsn", "ts_ms"]'}
    source = parsed(FILES, environment).source
    assert isinstance(source, DebeziumFilesSource)
    assert source.sequence_by == ("source.lsn", "ts_ms")


def test_variables_that_are_not_settings_are_ignored() -> None:
    assert parsed(WHOLE, {"CDC_HOME": "/x", "CDC_CONFIG": "/y", "CDC_FOLDER": "/z", "HOME": "/root"}) == parsed()


def test_the_file_is_given_by_option_then_by_variable_then_by_the_working_folder() -> None:
    environment = {"CDC_CONFIG": "/by/variable.yml"}
    assert settings_path(Path("/by/option.yml"), environment) == Path("/by/option.yml")
    assert settings_path(None, environment) == Path("/by/variable.yml")
    assert settings_path(None, {}) == Path.cwd() / "pipeline.yml"


@given(st.integers(1, 10_000), st.sampled_from([("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)]))
def test_a_duration_is_a_whole_number_and_a_unit(number: int, unit: tuple[str, int]) -> None:
    assert parse_duration(f"{number}{unit[0]}") == timedelta(seconds=number * unit[1])
    assert parse_duration(f" {number} {unit[0]} ") == timedelta(seconds=number * unit[1])


def test_the_json_schema_accepts_every_template() -> None:
    for path in TEMPLATES:
        text = path.read_text(encoding="utf-8")
        Draft202012Validator(json_schema()).validate(yaml.safe_load(text))
        assert parse_settings(text, path=path, environment={}).tables


def test_the_json_schema_accepts_what_the_settings_accept_and_refuses_unknown_keys() -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    validator.validate(yaml.safe_load(WHOLE))
    for wrong in (
        changed("slice_length: 60s", "slice_lenght: 60s"),
        changed("60s", "60"),
        changed("60s", "1.5s"),
        changed("name: shop\n", ""),
    ):
        with pytest.raises(ValidationError):
            validator.validate(yaml.safe_load(wrong))
