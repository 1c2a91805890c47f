"""Tables named by pattern."""

import json
from pathlib import Path

import pytest

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.settings.file import load_settings, store_matching
from cdc_pipeline.settings.table_patterns import checked_pattern, matching

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
