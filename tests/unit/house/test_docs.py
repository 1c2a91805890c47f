"""The documentation: generated pages are those of the code, the site builds, and its links lead somewhere."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.core
import typer.main

from cdc_pipeline.cli.application import application
from tests.support.doc_pages import blocks, pages, text_of
from tests.support.reference_pages import reference_pages, settings_page

ROOT = Path(__file__).parents[3]
PAGES_WITH_MESSAGES = (
    "docs/how-to/troubleshoot.md",
    "docs/how-to/source-changed.md",
    "docs/how-to/quarantine.md",
    "docs/reference/inspection.md",
    "docs/reference/bad-input.md",
)
SHORTEST_QUOTE = 12
NAMED_TEST = re.compile(r"tests/[\w/]+(?:\.py)?")


@pytest.mark.parametrize("path", sorted(reference_pages()))
def test_a_page_that_is_written_from_the_code_is_current(path: str) -> None:
    assert text_of(f"docs/{path}") == reference_pages()[path], "run make docs"


def test_every_setting_has_a_meaning() -> None:
    """A row without one says nothing that its name does not say: write `description=` at the field."""
    rows = [line for line in settings_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.split(" | ")[-1].strip(" |") == ""] == []


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "docs/site/mkdocs.yml"]
    ended = subprocess.run(
        [*build, "--site-dir", str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_pages_outside_the_site_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(page))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_test_that_a_page_names_exists() -> None:
    named = {(page, name) for page in pages() for name in NAMED_TEST.findall(text_of(page))}
    assert [(page, name) for page, name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= 150


def texts_of_the_code() -> str:
    """All string constants of the product, with the blanks of values in between, and its SQL."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "cdc_pipeline").rglob("*.sql")]
    for folder in ("cdc_pipeline", "snapshot", "plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            texts += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(texts)


def quoted_messages(page: str) -> list[str]:
    """The first cells of its tables that are messages: words in backticks, with `…` for values."""
    cells = re.findall(r"^\| (.*?) \|", text_of(page), re.MULTILINE)
    quotes = [quote for cell in cells for quote in re.findall(r"`([^`]+)`", cell) if "…" in quote]
    return [part for quote in quotes for part in quote.split("…") if len(part) >= SHORTEST_QUOTE]


def test_every_message_that_a_page_quotes_is_one_of_the_code() -> None:
    said = texts_of_the_code()
    quoted = [(page, part) for page in PAGES_WITH_MESSAGES for part in quoted_messages(page)]
    assert len(quoted) > len(PAGES_WITH_MESSAGES)
    assert [(page, part) for page, part in quoted if part.strip() not in said] == []


def test_the_glossary_names_what_is_in_the_code_and_the_sql() -> None:
    rows = [line.strip("| ").split(" | ") for line in text_of("docs/glossary.md").splitlines() if line.startswith("| ")]
    sources = [path for folder in ("cdc_pipeline", "snapshot", "plugins") for path in (ROOT / folder).rglob("*.*")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.suffix in {".py", ".sql"})
    named = [name for row in rows[2:] for cell in row[2:] for name in re.findall(r"`([^`]+)`", cell)]
    words = [word for name in named for word in re.findall(r"\w{3,}", name)]
    assert words
    assert [word for word in words if not re.search(rf"\b{word}\b", code)] == []


def commands_of(page: str) -> list[list[str]]:
    """Words behind `cdc` of each command in its `sh` and `text` blocks."""
    lines = "".join(block for language in ("sh", "text") for block in blocks(page, language)).splitlines()
    return [shlex.split(line)[1:] for line in lines if re.match(r"(\.venv/bin/)?cdc (?!.*\[)", line)]


def test_no_command_that_never_ends_is_followed_by_another() -> None:
    """A reader copies a whole block: `cdc consume` and `cdc work` without --until-idle come last in theirs."""
    every = [(page, block) for page in pages() for language in ("sh", "text") for block in blocks(page, language)]
    endless = re.compile(r"^(?:\.venv/bin/)?cdc (?:consume|work)\b(?!.*--until-idle).*\n.*\S", re.MULTILINE)
    assert [(page, found[0]) for page, block in every if (found := endless.search(block))] == []


@pytest.mark.parametrize("page", [page for page in pages() if commands_of(page)])
def test_every_command_that_a_page_shows_is_one_of_cdc(page: str) -> None:
    """Also those that no test runs: names, options and the number of arguments."""
    for words in commands_of(page):
        command, names = typer.main.get_command(application()), list(words)
        while isinstance(command, typer.core.TyperGroup):
            found = command.get_command(command.make_context("cdc", [], resilient_parsing=True), names.pop(0))
            assert found is not None, words
            command = found
        command.make_context("cdc", [name.replace("ID", "1") for name in names])
