"""What an installation remembers, and what it gives up."""

import socket
from pathlib import Path

import pytest

from cdc_pipeline.errors import SetupError
from cdc_pipeline.settings.installation.state import home_of, open_installation, with_free_ports
from tests.support.shop_settings import shop_settings


def test_ports_and_secrets_are_remembered(tmp_path: Path) -> None:
    first = open_installation(tmp_path / "home")
    assert open_installation(tmp_path / "home") == first
    assert len(set(first.ports.values())) == 3


def test_two_installations_share_nothing(tmp_path: Path) -> None:
    one, other = open_installation(tmp_path / "one"), open_installation(tmp_path / "other")
    assert one.identity != other.identity
    assert one.postgres_password != other.postgres_password


def test_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    installation = open_installation(tmp_path / "home")
    assert (installation.home / "installation.json").stat().st_mode & 0o777 == 0o600
    assert installation.postgres_password not in repr(installation)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Expecting value: line 1 column 1"),
        (b'{"identity": "x"}', "missing 8 required keyword-only arguments"),
        (b'{"new_in_a_later_version": 1}', "unexpected keyword argument 'new_in_a_later_version'"),
        (b"[1]", "must be a mapping, not list"),
        (b"\xff", "can't decode byte 0xff"),
    ],
    ids=["empty", "without keys", "an unknown key", "a list", "no UTF-8"],
)
def test_a_stored_state_that_cannot_be_read_is_named_with_the_way_out(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "installation.json"
    path.write_bytes(content)
    with pytest.raises(SetupError, match=rf"installation\.json cannot be read: .*{words}.*bring the file back"):
        open_installation(tmp_path)
    assert path.read_bytes() == content


def test_a_port_that_a_stranger_took_is_replaced_and_the_new_one_remembered(tmp_path: Path) -> None:
    installation = open_installation(tmp_path / "home")
    with socket.create_server(("127.0.0.1", installation.ports["spark"])):
        renewed = with_free_ports(installation, ["postgres", "spark"])
    assert renewed.ports["spark"] != installation.ports["spark"]
    assert renewed.ports["postgres"] == installation.ports["postgres"]
    assert open_installation(tmp_path / "home") == renewed


def test_state_lies_beside_the_settings_unless_told_otherwise(tmp_path: Path) -> None:
    settings = shop_settings(tmp_path)
    assert home_of(settings, {}) == tmp_path / ".cdc"
    assert home_of(settings, {"CDC_HOME": "/elsewhere"}) == Path("/elsewhere")
