"""The page of `make audit`: each pinned version beside the newest, with the days on which they were uploaded."""

from datetime import date

from tests.support.versions import PAGE, page, versions

PINNED = """
[[packages]]
name = "old"
version = "1.0"
sdist = { url = "there", upload-time = 2024-05-02T09:00:10Z, hashes = {} }
wheels = [{ url = "there", upload-time = 2024-05-01T09:00:10Z, hashes = {} }]

[[packages]]
name = "untold"
version = "3.0"
wheels = [{ url = "there", hashes = {} }]
"""
NEWEST = PINNED.replace("1.0", "2.0").replace("2024", "2026")


def test_a_version_is_as_old_as_its_first_file() -> None:
    assert versions(PINNED)["old"].uploaded == date(2024, 5, 1)


def test_a_row_has_the_pinned_version_and_the_newest() -> None:
    words = page(versions(PINNED), versions(NEWEST), {"group:jar:1": date(2025, 1, 1), "group:jar:2": date(1980, 1, 1)})
    assert "| old | 1.0 | 2024-05-01 | 2.0 | 2026-05-01 |\n" in words
    assert "| untold | 3.0 | not told | the same | |\n" in words
    assert "| group:jar:1 | 2025-01-01 |\n| group:jar:2 | hidden |\n" in words


def test_the_page_names_no_place_from_which_packages_came() -> None:
    assert "://" not in PAGE.read_text(encoding="utf-8")
