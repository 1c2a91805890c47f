"""The documentation: generated pages are those of the code, the site builds, and its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.doc_pages import pages, text_of
from tests.support.reference_pages import reference_pages

ROOT = Path(__file__).parents[3]
NAMED_TEST = re.compile(r"tests/[\w/]+(?:\.py)?")


@pytest.mark.parametrize("path", sorted(reference_pages()))
def test_a_page_that_is_written_from_the_code_is_current(path: str) -> None:
    assert text_of(f"docs/{path}") == reference_pages()[path], "run make docs"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "docs/site/mkdocs.yml"]
    ended = subprocess.run(
        [*build, "--site-dir", str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_of_pages_outside_the_site_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(page))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_test_that_a_page_names_exists() -> None:
    named = {(page, name) for page in pages() for name in NAMED_TEST.findall(text_of(page))}
    assert [(page, name) for page, name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= 150
