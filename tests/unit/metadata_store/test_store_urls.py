"""The triggerer reads the URL of the metadata store by the rules of all commands, though its driver has others."""

from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import pytest

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.metadata_store.database import asyncpg_arguments


def parameters(url: str, environment: Mapping[str, str]) -> dict[str, list[str]]:
    return parse_qs(urlsplit(asyncpg_arguments(url, environment)["dsn"]).query)


@pytest.mark.parametrize(
    ("url", "environment", "sslmode"),
    [
        ("postgresql://cdc@db.example/store", {}, ["require"]),
        ("postgresql://cdc@/store?host=db.example", {}, ["require"]),
        ("postgresql://cdc@/store?hostaddr=192.0.2.7", {}, ["require"]),
        ("postgresql://cdc@/store", {"PGHOST": "db.example"}, ["require"]),
        ("postgresql://cdc@db.example/store?sslmode=prefer", {}, ["prefer"]),
        ("postgresql://cdc@db.example/store", {"PGSSLMODE": "disable"}, None),
        ("postgresql://cdc@127.0.0.1/store", {}, None),
    ],
)
def test_a_store_on_another_machine_is_read_over_tls_unless_somebody_says_otherwise(
    url: str, environment: Mapping[str, str], sslmode: list[str] | None
) -> None:
    assert parameters(url, environment).get("sslmode") == sslmode


def test_parameters_of_libpq_are_translated_or_left_out() -> None:
    url = "postgresql+psycopg2://cdc:p%40ss@127.0.0.1:5433/store?connect_timeout=3&keepalives=0&sslcert=a.pem"
    assert asyncpg_arguments(url, {}) == {
        "dsn": "postgresql://cdc:p%40ss@127.0.0.1:5433/store?sslcert=a.pem",
        "timeout": 3,
    }


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_a_try_to_connect_ends_also_without_a_time_limit_in_the_url(seconds: str) -> None:
    assert asyncpg_arguments(f"postgresql://127.0.0.1/store?connect_timeout={seconds}", {})["timeout"] == 10


def test_several_servers_are_all_passed_on() -> None:
    assert parameters("postgresql://cdc@/store?host=one:1&host=two:2", {})["host"] == ["one:1,two:2"]


def test_the_certificates_of_the_system_are_no_file() -> None:
    url = "postgresql://cdc@db.example/store?sslmode=verify-full&sslrootcert=system"
    assert asyncpg_arguments(url, {})["ssl"] is True


def test_what_is_no_url_is_refused_as_every_command_refuses_it() -> None:
    with pytest.raises(SettingsError, match="metadata_store is no URL"):
        asyncpg_arguments("postgresql://cdc:p@ss/word@db.example/store", {})
