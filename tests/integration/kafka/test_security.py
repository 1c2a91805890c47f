"""TLS and SASL against the real broker: the right login reads, a wrong one is one clear error without any secret."""

import sys
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.errors import SourceError
from tests.support.certificates import write_certificate
from tests.support.command_line import CommandLine
from tests.support.kafka import LOOPBACK, PASSWORD, USER, SecureKafka, TopicFeed

pytestmark = pytest.mark.kafka

ORDERS = "public.orders"
TABLES = ({"name": ORDERS, "id": ["id"], "columns": {"id": "int", "note": "text"}},)
WRONG = "canary-that-is-wrong"


@pytest.fixture
def feed(tmp_path: Path, store_url: str, kafka: str) -> TopicFeed:
    """Writes without a login: only what reads is tested."""
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES)
    feed.create(ORDERS)
    feed.write(ORDERS, 1, "one")
    return feed


def secured(feed: TopicFeed, kafka: SecureKafka, **changes: Any) -> TopicFeed:
    login = {"servers": kafka.servers, "security": "sasl_ssl", "username": USER, "password": PASSWORD}
    source = login | {"ca_file": str(kafka.ca)} | changes
    return TopicFeed(
        folder=feed.folder,
        store_url=feed.store_url,
        servers=feed.servers,
        tables=TABLES,
        source=source,
        prefix=feed.prefix,
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_the_right_login_reads(mechanism: str, feed: TopicFeed, secure_kafka: SecureKafka) -> None:
    reader = secured(feed, secure_kafka, mechanism=mechanism)
    reader.consume()
    assert reader.notes(ORDERS) == {1: "one"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_by_name(mechanism: str, feed: TopicFeed, secure_kafka: SecureKafka) -> None:
    with pytest.raises(SourceError, match=r"refuse: .*[Aa]uthentication failed") as refused:
        secured(feed, secure_kafka, mechanism=mechanism, password=WRONG).set_up()
    assert not refused.value.outage
    assert "username, password" in refused.value.remedy
    assert WRONG not in str(refused.value)


def test_a_broker_whose_certificate_is_not_trusted_is_refused(
    feed: TopicFeed, secure_kafka: SecureKafka, tmp_path: Path
) -> None:
    write_certificate(tmp_path / "other.pem", tmp_path / "other-ca.pem", LOOPBACK)
    with pytest.raises(SourceError, match=r"refuse: .*certificate") as refused:
        secured(feed, secure_kafka, ca_file="other-ca.pem").set_up()
    assert "certificates" in refused.value.remedy


def test_no_command_shows_the_password(feed: TopicFeed, secure_kafka: SecureKafka, tmp_path: Path) -> None:
    cdc = CommandLine(folder=tmp_path, source_url=feed.store_url, store_url=feed.store_url)
    (tmp_path / "password").write_text(f"{WRONG}\n", encoding="utf-8")
    document = secured(feed, secure_kafka, password_file="password").document
    del document["source"]["password"]
    cdc.write_settings(**document)
    outcome = cdc.run("setup-source")
    shown = outcome.output + outcome.errors
    sys.stdout.write(shown)
    assert outcome.exit_code != 0
    assert "refuse" in shown
    assert WRONG not in shown
