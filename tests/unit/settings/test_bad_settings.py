"""A pipeline.yml that nobody would write, or that is no file, is refused at once, and no error shows its content."""

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.metadata_store.database import create_store_engine
from cdc_pipeline.settings.change_files import ChangeFilesSource, CsvSettings
from cdc_pipeline.settings.file import load_settings, matching_path
from cdc_pipeline.settings.installation.state import open_installation
from cdc_pipeline.settings.work import spark_url
from cdc_pipeline.sources.postgres.session import connect
from tests.support.settings_texts import WHOLE, changed, parsed, refusal

SECRET = "hunter2"
MOST_SECONDS = 2.0
"""Of the processor: other tests run beside this one."""
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
NESTED = "a0: &a0 [x]\n" + "".join(
    f"a{number}: &a{number} {'[' * 45}*a{number - 1}{']' * 45}\n" for number in range(1, 31)
)
"""Each within the bound, and all of them in each other."""
TEXTS = {
    "an alias bomb": (LAUGHS, "line 6 has more than 200000 values when aliases are expanded"),
    "an alias to itself": ("a: &a [*a]\n", "line 1 has an alias to the value that contains it"),
    "3,000 lists in each other": ("name: " + "[" * 3_000 + "]" * 3_000, "line 1 is nested deeper than 50"),
    "3,000 mappings in each other": ("{a: " * 3_000 + "}" * 3_000, "line 1 is nested deeper than 50"),
    "1,350 lists in each other by aliases": (NESTED, "line 3 is nested deeper than 50"),
    "3,000 blocks in each other": ("- " * 3_000 + "a", "line 1 is nested deeper than 50"),
    "a number of 5,000 digits": ("name: x\nlake: " + "9" * 5_000, "line 2 has a number with 5000 digits"),
    "a text of 20,000 characters": ("name: x\nlake: " + "y" * 20_000, "line 2 has a value with 20000 characters"),
    "a number that is marked as one": ("lake: !!int x", "is not YAML: a value cannot be read: ValueError"),
    "a number that is marked as one and empty": ('lake: !!int ""', "is not YAML: a value cannot be read: IndexError"),
    "a truth that is marked as one": ("lake: !!bool x", "is not YAML: a value cannot be read: KeyError"),
    "a moment that is marked as one": ("lake: !!timestamp x", "is not YAML: a value cannot be read: AttributeError"),
    "a moment that is none": ("lake: 2026-99-99", "is not YAML: a value cannot be read: ValueError"),
    "an object of Python": ("lake: !!python/object/apply:os.system [ls]", "line 1 column 7 is not YAML: could not"),
    "a list as a key": ("? [a]\n: b\n", "line 1 column 3 is not YAML: found unhashable key"),
    "a NUL": ("name: a\x00b", "line 1 is not YAML: a character that YAML does not allow"),
    "four megabytes": ("# " + "x" * (5 << 20), "it is larger than 4194304 bytes"),
}
LEAKS = [
    f"source: {{url: postgresql://u:{SECRET}@h/d",
    f"url: *{SECRET}",
    f"url: !{SECRET} x",
    f"url: @{SECRET}",
    f"url: '{SECRET}\nname: x",
    f'url: "\\{SECRET}"',
    f"url: {SECRET}: {SECRET}: x",
    f"\t{SECRET}",
    f"url: %{SECRET}\n%{SECRET} x",
    f"? {{{SECRET}: 1}}\n: {SECRET}",
]

OF_THE_PROJECT = (
    *("CDC_CONFIG", "CDC_HOME", "CDC_AGAINST", "CDC_HEARTBEAT", "CDC_STACK", "CDC_PROCESS", "CDC_POSTGRES_BIN"),
    *("CDC_AIRFLOW_HOSTS", "CDC_AIRFLOW_IS_EMBEDDED", "CDC_AIRFLOW_PASSWORD", "CDC_JWT_SECRET", "CDC_SPARK_TOKEN"),
    *("CDC_METADATA_PASSWORD", "CDC_POSTGRES_PASSWORD", "CDC_SOURCE_PASSWORD", "CDC_S3", "CDC_KINESIS", "CDC_DYNAMODB"),
    *("CDC_BANK_SECONDS", "CDC_FIRE_SECONDS", "CDC_CHAOS_REPORT", "CDC_CHAOS_SEED", "CDC_MYSQLD"),
    *("CDC_FUZZ_LAKE", "CDC_FUZZ_LINES", "CDC_FUZZ_SEEDS"),
)
"""Variables of commands, processes and tests."""


def refused(path: Path) -> str:
    """And no traceback shows more, whatever chain of causes it has."""
    begun = time.process_time()
    with pytest.raises(SettingsError) as found:
        load_settings(path, {})
    assert time.process_time() - begun < MOST_SECONDS
    assert SECRET not in "".join(traceback.format_exception(found.value))
    assert (found.value.exit_code, len(str(found.value).splitlines())) == (2, 1)
    return str(found.value)


@pytest.mark.parametrize(("text", "words"), TEXTS.values(), ids=TEXTS)
def test_what_nobody_would_write_is_refused_by_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "pipeline.yml"
    path.write_text(text, encoding="utf-8")
    assert words in refused(path)


@pytest.mark.parametrize("text", LEAKS)
def test_what_is_no_yaml_is_told_by_line_and_column_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pipeline.yml"
    path.write_text(text, encoding="utf-8")
    assert "pipeline.yml line " in refused(path)


@pytest.mark.parametrize(
    "source", [f"{{kind: postgres, slot: a, pasword: {SECRET}}}", f"postgresql://u:{SECRET}@h/d", f"[{SECRET}]"]
)
def test_a_value_that_is_no_setting_is_in_no_traceback(tmp_path: Path, source: str) -> None:
    """Airflow shows the traceback of a pipeline.yml that its DAGs cannot read."""
    path = tmp_path / "pipeline.yml"
    path.write_text(f"name: x\nlake: lake\nsource: {source}\ntables: [{{name: shop.public.a}}]\n", encoding="utf-8")
    assert "pipeline.yml line 3: " in refused(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Path.mkdir, "it is not a regular file"),
        (os.mkfifo, "it is not a regular file"),
        (lambda path: path.write_bytes(b"name: x\nlake: \xff\xfe"), "line 2 is not UTF-8: invalid start byte"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
    ids=["a folder", "a FIFO", "no UTF-8", "a link to itself"],
)
def test_what_is_no_file_of_text_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    make(tmp_path / "pipeline.yml")
    assert words in refused(tmp_path / "pipeline.yml")


@pytest.mark.parametrize("kept", ["[" * 3_000, "9" * 5_000, '{"a": 1}', "[1]", "", "\x00"])
def test_a_list_of_matching_tables_that_is_none_is_refused(tmp_path: Path, kept: str) -> None:
    path = tmp_path / "pipeline.yml"
    path.write_text("name: x\nlake: lake\nsource: {kind: postgres}\ninclude: [shop.public.*]\n", encoding="utf-8")
    matching_path(path).write_text(kept, encoding="utf-8")
    assert "pipeline.tables.json does not list them" in refused(path)


@pytest.mark.parametrize("value", ["[" * 3_000, "[" + "9" * 5_000 + "]", f'["{SECRET}'])
def test_a_variable_that_is_no_honest_json_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "pipeline.yml"
    path.write_text("name: x\nlake: lake\nsource: {kind: postgres}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="a CDC_ variable cannot be read") as found:
        load_settings(path, {"CDC_TABLES": value})
    assert SECRET not in "".join(traceback.format_exception(found.value))


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@[bad",
        f"postgresql://u:{SECRET}/x@h/d",
        f"postgresql://u:x@{SECRET}@h/d",
        f"host=h password={SECRET} nonsense",
        f"postgresql://u:p@h:{SECRET}/d",
        f"{SECRET}",
        f"postgresql://u:p@h/d?{SECRET}=1",
    ],
)
def test_a_url_that_cannot_be_read_is_never_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match=r"source\.url is no URL of a PostgreSQL server") as found:
        connect(url)
    assert SECRET not in "".join(traceback.format_exception(found.value))


@pytest.mark.parametrize("url", [f"postgresql://u:p@h:{SECRET}/d", SECRET, f"host=h password={SECRET}"])
def test_a_store_that_is_no_url_is_never_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match="metadata_store is no URL of a PostgreSQL server") as found:
        create_store_engine(url)
    assert SECRET not in "".join(traceback.format_exception(found.value))


@pytest.mark.parametrize("folder", ["{server}", "{0}", "{schema", "{schema.x}", "{schema[x]}", "{schema:d}"])
def test_a_template_with_other_parts_than_those_of_a_name_is_refused(folder: str) -> None:
    with pytest.raises(ValidationError, match="is not a folder's name: write"):
        ChangeFilesSource.model_validate({"kind": "change_files", "path": "x", "format": "upserts", "folder": folder})


@pytest.mark.parametrize("delimiter", ["§", '"', "\n", "\r", "", ",,"])
def test_a_delimiter_that_divides_no_values_is_refused(delimiter: str) -> None:
    with pytest.raises(ValidationError, match=r"cannot be the delimiter|should have at (least|most) 1 character"):
        CsvSettings(delimiter=delimiter)


@pytest.mark.parametrize("key", ["null", '"null"'])
def test_the_text_that_stands_for_null_needs_no_quotes_around_its_key(key: str) -> None:
    files = f"source: {{kind: change_files, path: x, format: dms, csv: {{{key}: 'NULL'}}}}"
    source = parsed(changed("source: {kind: postgres, publication: cdc_shop, slot: cdc_shop}", files)).source
    assert isinstance(source, ChangeFilesSource)
    assert source.csv == CsvSettings(null="NULL")


def test_the_folder_of_the_file_is_no_key() -> None:
    error = refusal(f"{WHOLE}folder: /x\n")
    assert "pipeline.yml line 10: the key 'folder' is unknown; known here: driver, exclude, include, " in error


@pytest.mark.parametrize(
    ("variable", "meant"),
    [("CDC_SLICE_LENGHT", "CDC_SLICE_LENGTH"), ("cdc_lak", "CDC_LAKE"), ("CDC_SORCE__URL", "CDC_SOURCE")],
)
def test_a_misspelt_variable_is_refused_with_what_was_meant(variable: str, meant: str) -> None:
    error = refusal(WHOLE, {variable: "5s"})
    assert f"the variable {variable} sets no key of pipeline.yml; did you mean {meant}?" in error


@pytest.mark.parametrize("variable", [*OF_THE_PROJECT, "CDC_SERVICE_HOST", "CDC_SPARK_PORT", "CDC_METADATA_STORE_PORT"])
def test_a_variable_for_something_else_is_left_alone(variable: str) -> None:
    assert parsed(WHOLE, {variable: "x"}) == parsed()


def test_a_mistake_in_a_variable_names_the_variable_and_not_a_line_of_the_file() -> None:
    environment = {"CDC_SLICE_LENGTH": "soon", "cdc_worker__slots": "x", "CDC_SOURCE__SLOT": "A", "CDC_KEEP": "3"}
    found = refusal(WHOLE, environment)
    assert "the variable CDC_SLICE_LENGTH: slice_length: 'soon' is not a duration" in found
    assert "the variable cdc_worker__slots: worker.slots: 'x' is not a whole number" in found
    assert "the variable CDC_SOURCE__SLOT: source.slot: 'A' does not match" in found
    assert "the variable CDC_KEEP: keep: a mapping of keys to values has to stand here" in found
    for variable, value in (("CDC_SOURCE__SLOTT", "x"), ("CDC_SOURCE", '{"slott": "x"}')):
        found = refusal(WHOLE, {variable: value})
        assert f"the variable {variable}: the key 'source.slott' is unknown; did you mean 'slot'?" in found


def test_a_mistake_beside_what_a_variable_sets_names_the_line_of_the_file() -> None:
    text = WHOLE.replace("slot: cdc_shop", "heartbeat: often", 1)
    assert text != WHOLE
    found = refusal(text, {"CDC_SOURCE": '{"slot": "cdc"}'})
    assert "line" in found
    assert "the variable" not in found


def test_a_spark_that_is_no_spark_connect_server_is_refused() -> None:
    for url in ("local", "spark://h:7077", "http://h:15002"):
        assert f"spark: {url!r} is neither embedded nor sc://host:port" in refusal(WHOLE, {"CDC_SPARK": url})


@pytest.mark.parametrize(
    "url",
    [
        "sc://localhost:15002;token=s3cret",
        "sc://localhost;token=s3cret",
        "sc://localhost:port/;token=s3cret",
        "sc://localhost:65536/;token=s3cret",
        "sc://localhost/;token=s3cret=",
        "sc://localhost/;token=s3c#s3cret",
        "sc://localhost/;token=a s3cret",
        "sc:///;token=s3cret",
    ],
)
def test_a_url_of_spark_that_its_client_could_not_read_is_refused_without_its_token(url: str) -> None:
    found = refusal(WHOLE, {"CDC_SPARK": url})
    assert "is neither embedded nor sc://host:port" in found
    assert "s3c" not in found


def test_every_form_of_a_url_of_spark_is_taken() -> None:
    for url in (
        "embedded",
        "sc://h",
        "sc://h/",
        "sc://h:15002",
        "sc://[::1]:1/;token=a%3D",
        "sc://h/;a=b;use_ssl=true",
    ):
        assert spark_url(url) == url


def test_a_state_folder_that_cannot_be_created_names_its_variable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="correct CDC_HOME, or the rights of the folder"):
        open_installation(tmp_path / "file" / "home")
