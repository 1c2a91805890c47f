"""Nothing is sent in plain text to another machine unless its URL says so."""

from collections.abc import Callable, Mapping

import pytest

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.lake.session import cancel, client_of, connect
from cdc_pipeline.settings.libpq import missing_defaults


@pytest.mark.parametrize(
    ("given", "environment", "sslmode"),
    [
        ({"host": "db.example"}, {}, "require"),
        ({"host": "10.0.0.7"}, {}, "require"),
        ({"hostaddr": "10.0.0.7"}, {}, "require"),
        ({"host": "localhost,db.example"}, {}, "require"),
        ({}, {"PGHOST": "db.example"}, "require"),
        ({"host": "db.example", "sslmode": "prefer"}, {}, None),
        ({"host": "db.example", "sslmode": "verify-full"}, {}, None),
        ({"host": "db.example"}, {"PGSSLMODE": "verify-full"}, None),
        ({"host": "127.0.0.1"}, {}, None),
        ({"host": "localhost,::1"}, {}, None),
        ({"host": "/run/postgresql"}, {}, None),
        ({}, {}, None),
    ],
)
def test_a_server_on_another_machine_is_asked_for_tls(
    given: Mapping[str, str], environment: Mapping[str, str], sslmode: str | None
) -> None:
    assert missing_defaults(given, environment).get("sslmode") == sslmode


@pytest.mark.parametrize(
    "url",
    [
        "sc://spark.example:15002",
        "sc://spark.example:15002/;token=s3cret",
        "sc://spark.example",
        "sc://spark.example/;token=s3cret",
        "sc://localhost:1@spark.example/;token=s3cret",
    ],
)
@pytest.mark.parametrize("call", [connect, lambda url: client_of(url, "a"), lambda url: cancel(url, "a", "claim-b")])
def test_a_spark_server_on_another_machine_is_not_reached_in_plain_text(
    url: str, call: Callable[[str], object]
) -> None:
    with pytest.raises(SettingsError, match=r"spark\.example:15002 .*use_ssl=true.*use_ssl=false") as refused:
        call(url)
    assert "s3cret" not in str(refused.value)
