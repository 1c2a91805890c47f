"""What an operator can cause is said by every verb in one line that names what to do, never by a traceback."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.command_line import CommandLine
from tests.support.mariadb import run_mysql
from tests.support.streams import run_sql

ERROR, USAGE = 1, 2
Verbs = tuple[tuple[str, ...], ...]
OF_SOURCE = (
    ("setup-source",),
    ("setup-source", "--print-sql"),
    ("consume", "--until-idle"),
    ("snapshot",),
    ("verify",),
)
OF_STORE = (*OF_SOURCE, ("apply", "--until-idle"), ("status",), ("remove", "--pipeline"))
URLS = {
    "postgresql://cdc@no-such-host.invalid/shop": "correct the host's name in {setting}",
    "postgresql://cdc@127.0.0.1:1/shop": "correct host and port in {setting}",
    "postgresql://{user}:wrong@{place}{path}": "correct user and password in {setting}",
    "postgresql://{user}:{password}@{place}/no_such_database": "create it on the server, or correct {setting}",
    "postgresql://{user}:{password}@{place}{path}?sslmode=require": "correct sslmode",
}
NO_URL = "elsewhere"


def faulty(url: str, template: str) -> str:
    parts = urlsplit(url)
    place = f"{parts.hostname}:{parts.port}"
    return template.format(user=parts.username, password=parts.password, place=place, path=parts.path)


def source_of(cdc: CommandLine, url: str) -> Mapping[str, str]:
    return {"kind": "postgres", "url": url, "publication": cdc.name, "slot": cdc.name}


def test_each_kind_of_wrong_url_is_named(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    for template in URLS:
        check_is_named(cdc, template, of_source=OF_SOURCE[:1], of_store=OF_STORE[-2:-1])


@pytest.mark.parametrize(
    "template",
    [pytest.param(template, marks=pytest.mark.nightly if number else ()) for number, template in enumerate(URLS)],
)
def test_a_wrong_url_of_source_or_metadata_store_is_named_by_every_verb(cdc: CommandLine, template: str) -> None:
    assert cdc.run("setup-source").exit_code == 0
    check_is_named(cdc, template, of_source=OF_SOURCE, of_store=OF_STORE)


def check_is_named(cdc: CommandLine, template: str, *, of_source: Verbs, of_store: Verbs) -> None:
    cdc.write_settings(source=source_of(cdc, faulty(cdc.source_url, template)))
    for words in of_source:
        ended = cdc.run(*words)
        assert (ended.exit_code, ended.output) == (ERROR, ""), ended.errors
        assert "the source does not answer" in ended.error
        assert URLS[template].format(setting="source.url") in ended.error
    cdc.write_settings(metadata_store=faulty(cdc.store_url, template))
    for words in of_store:
        ended = cdc.run(*words)
        assert (ended.exit_code, ended.output) == (ERROR, ""), ended.errors
        assert "the metadata store did not answer" in ended.error
        assert URLS[template].format(setting="metadata_store") in ended.error


def test_a_wrong_password_of_a_mariadb_is_named_by_every_verb(
    cdc: CommandLine, mariadb: str, mysql_database: str
) -> None:
    run_mysql(mariadb, f"CREATE TABLE {mysql_database}.orders (id INT PRIMARY KEY)")
    source = {"kind": "mysql", "marker_table": f"{mysql_database}.cdc_marker"}
    tables = [{"name": f"shop.{mysql_database}.orders"}]
    cdc.write_settings(source=source | {"url": mariadb}, tables=tables)
    assert cdc.run("setup-source").exit_code == 0
    cdc.write_settings(source=source | {"url": mariadb.replace("of%20this", "of%20another")}, tables=tables)
    for words in OF_SOURCE:
        ended = cdc.run(*words)
        assert (ended.exit_code, ended.output) == (ERROR, ""), ended.errors
        assert "the source does not answer: Access denied" in ended.error
        assert "correct user and password in source.url" in ended.error


def test_what_is_no_url_is_a_mistake_in_the_settings(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    cdc.write_settings(source=source_of(cdc, NO_URL))
    for words in OF_SOURCE:
        ended = cdc.run(*words)
        assert (ended.exit_code, "source.url is no URL of a PostgreSQL server" in ended.error) == (USAGE, True)
    for url, words in ((url, words) for url in (NO_URL, "sqlite:///x", "mysql://h/d") for words in OF_STORE):
        cdc.write_settings(metadata_store=url)
        ended = cdc.run(*words)
        assert (ended.exit_code, "metadata_store is no URL of a PostgreSQL server" in ended.error) == (USAGE, True)


def test_a_dropped_publication_is_named_by_every_verb_with_the_command_that_works(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    assert cdc.run("consume", "--until-idle").exit_code == 0
    run_sql(cdc.source_url, f'DROP PUBLICATION "{cdc.name}"', "INSERT INTO orders VALUES (1)")
    for words in (("setup-source",), ("consume", "--until-idle"), ("verify",), ("apply", "--until-idle")):
        assert "Traceback" not in cdc.run(*words).errors
    status = cdc.run("status", "--json").rows[0]
    assert (status["state"], "is not in the publication" in status["state_reason"]) == ("stale", True)
    assert f"run cdc snapshot {cdc.name}.public.orders" in status["state_reason"]
    assert "CREATE PUBLICATION" in cdc.run("setup-source", "--print-sql").output


def test_a_metadata_store_that_the_role_may_not_use_is_named(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    role, parts = f"stranger_to_{cdc.name}", urlsplit(cdc.store_url)
    run_sql(cdc.store_url, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        cdc.write_settings(metadata_store=f"postgresql://{role}:x@{parts.hostname}:{parts.port}{parts.path}")
        for words in OF_STORE:
            ended = cdc.run(*words)
            assert (ended.exit_code, "the metadata store refuses: permission denied" in ended.error) == (ERROR, True)
    finally:
        run_sql(cdc.store_url, f"DROP ROLE {role}")


def test_a_file_of_the_machine_that_is_in_the_way_is_named(cdc: CommandLine) -> None:
    (cdc.folder / "home").write_text("no folder")
    assert str(Path("home")) in cdc.run("status").error
