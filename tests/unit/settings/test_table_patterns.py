"""Tables named by pattern."""

import json
from pathlib import Path

import pytest

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.settings.file import load_settings, store_matching
from cdc_pipeline.settings.table_patterns import checked_pattern, matching
from tests.support.settings_texts import WHOLE, refusal

NAMES = ["shop.public.orders", "shop.public.tmp_1", "shop.sales.orders", "shop.Public.orders"]
PATTERNS = """
name: shop
lake: lake
source: {kind: postgres}
include: ["shop.public.*"]
exclude: ["shop.*.tmp_?"]
"""


@pytest.mark.parametrize(
    ("include", "exclude", "found"),
    [
        (["shop.public.*"], [], ["shop.public.orders", "shop.public.tmp_1"]),
        (["shop.public.*"], ["shop.*.tmp_?"], ["shop.public.orders"]),
        (["shop.*.orders"], ["shop.public.*"], ["shop.Public.orders", "shop.sales.orders"]),
        (["shop.*.nothing"], [], []),
    ],
)
def test_each_part_of_a_name_matches_its_own_part(include: list[str], exclude: list[str], found: list[str]) -> None:
    assert list(matching(NAMES, include=include, exclude=exclude)) == found


@pytest.mark.parametrize(
    ("include", "exclude", "found"),
    [
        (["shop.app.*"], ["shop.app.audit*"], []),
        (["shop.app.*"], ["shop.app.audit"], ['shop.app."audit.log"']),
        (["shop.app.audit?log"], [], ['shop.app."audit.log"']),
        (["shop.my?app.l*"], [], ['shop."my.app".log']),
        (["shop.app.audit"], [], []),
    ],
)
def test_a_part_with_a_dot_matches_as_a_whole(include: list[str], exclude: list[str], found: list[str]) -> None:
    names = ['shop.app."audit.log"', 'shop."my.app".log']
    assert list(matching(names, include=include, exclude=exclude)) == found


@pytest.mark.parametrize("pattern", ["orders", "shop.*", "*.public.orders", "shop..orders", "a.b.c.d"])
def test_a_pattern_has_three_parts_and_a_plain_database(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not of the form"):
        checked_pattern(pattern)


def test_tables_that_match_are_kept_beside_the_file_and_listed_ones_keep_their_settings(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yml"
    path.write_text(PATTERNS, encoding="utf-8")
    with pytest.raises(SettingsError, match="run cdc setup-source"):
        load_settings(path, {})
    assert load_settings(path, {}, matching=()).include == ("shop.public.*",)
    store_matching(path, ["shop.public.orders", "shop.public.customers"])
    assert [table.name for table in load_settings(path, {}).tables] == ["shop.public.orders", "shop.public.customers"]
    path.write_text(PATTERNS + "tables: [{name: shop.public.orders, deletes: soft}]", encoding="utf-8")
    tables = load_settings(path, {}).tables
    assert [(table.name, table.deletes) for table in tables] == [
        ("shop.public.orders", "soft"),
        ("shop.public.customers", "hard"),
    ]
    assert json.loads((tmp_path / "pipeline.tables.json").read_text()) == [table.name for table in tables]


def test_a_table_that_the_patterns_no_longer_match_is_left_out_before_the_source_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yml"
    store_matching(path, ["shop.public.orders", "shop.public.customers", "shop.public.salaries"])
    path.write_text(PATTERNS.replace("shop.*.tmp_?", "shop.public.sal*"), encoding="utf-8")
    assert [table.name for table in load_settings(path, {}).tables] == ["shop.public.orders", "shop.public.customers"]
    path.write_text(PATTERNS.replace("public.*", "public.o*"), encoding="utf-8")
    assert [table.name for table in load_settings(path, {}).tables] == ["shop.public.orders"]


@pytest.mark.parametrize("include", ["{a: b}", "5", "true", "shop.public.*"])
def test_patterns_that_are_no_list_are_refused_by_their_line(include: str) -> None:
    assert "pipeline.yml line 10: include: " in refusal(f"{WHOLE}include: {include}\n")


@pytest.mark.parametrize("name", ["[a, b]", "{a: b}", "5", "orders"])
def test_a_listed_name_that_is_none_is_refused_beside_patterns(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=r"pipeline.yml line 6: tables\.0\.name: ") as refused:
        load_settings(written(tmp_path, f"[{{name: {name}}}]"), {}, matching=["shop.public.orders"])
    assert refused.value.exit_code == 2


def test_tables_that_are_no_list_are_refused_beside_patterns(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"pipeline.yml line 6: tables: "):
        load_settings(written(tmp_path, "{a: b}"), {}, matching=["shop.public.orders"])


def test_a_listed_name_is_the_same_table_in_quotes_and_without(tmp_path: Path) -> None:
    path = written(tmp_path, """[{name: 'shop."public".orders', deletes: soft}]""")
    (table,) = load_settings(path, {}, matching=["shop.public.orders"]).tables
    assert (table.name, table.deletes) == ("shop.public.orders", "soft")


def written(folder: Path, tables: str) -> Path:
    path = folder / "pipeline.yml"
    path.write_text(f"{PATTERNS.strip()}\ntables: {tables}\n", encoding="utf-8")
    return path
