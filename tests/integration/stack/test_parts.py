"""Single parts for one command."""

import os
import shutil
from pathlib import Path

import pytest

from cdc_pipeline.errors import LeaseBusy
from cdc_pipeline.stack.control import up
from cdc_pipeline.stack.parts import running
from cdc_pipeline.stack.postgres import is_accepting
from tests.support.shop_settings import shop_settings

POSTGRES = frozenset({"postgres"})


def test_postgres_and_its_databases_are_there_inside_the_block_and_gone_after_it(tmp_path: Path, home: Path) -> None:
    settings, config = shop_settings(tmp_path), tmp_path / "pipeline.yml"
    with running(settings, config=config, home=home, parts=POSTGRES) as endpoints:
        assert endpoints.source_url.endswith("/shop")
        assert is_accepting(endpoints.source_url)
        assert is_accepting(endpoints.metadata_store_url)
    assert not is_accepting(endpoints.source_url)


def test_a_command_inside_another_uses_what_the_outer_one_started(tmp_path: Path, home: Path) -> None:
    settings, config = shop_settings(tmp_path), tmp_path / "pipeline.yml"
    with running(settings, config=config, home=home, parts=POSTGRES) as outer:
        with running(settings, config=config, home=home, parts=POSTGRES) as inner:
            assert inner == outer
        assert is_accepting(outer.source_url)


def test_up_refuses_while_a_command_has_servers_of_its_own(tmp_path: Path, home: Path) -> None:
    settings, config = shop_settings(tmp_path), tmp_path / "pipeline.yml"
    with (
        running(settings, config=config, home=home, parts=POSTGRES),
        pytest.raises(LeaseBusy, match="another cdc command"),
    ):
        up(settings, config=config, home=home, on_states=lambda _: None)


def test_external_servers_are_left_alone(tmp_path: Path, home: Path) -> None:
    url = "postgresql://someone@db.example/shop"
    settings = shop_settings(tmp_path, CDC_SOURCE__URL=url, CDC_METADATA_STORE=url)
    with running(settings, config=tmp_path / "pipeline.yml", home=home, parts=POSTGRES) as endpoints:
        assert endpoints.metadata_store_url == url
        assert not is_accepting(endpoints.airflow_database_url)


def test_a_home_that_the_account_cannot_enter_gets_its_data_elsewhere_and_keeps_its_modes(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(parents=True, mode=0o700)
    settings, config, inner = shop_settings(closed), closed / "pipeline.yml", closed / "home"
    try:
        with running(settings, config=config, home=inner, parts=POSTGRES) as endpoints:
            assert is_accepting(endpoints.source_url)
        assert closed.stat().st_mode & 0o777 == 0o700
        assert (inner / "postgres").is_symlink() == (os.geteuid() == 0)
    finally:
        shutil.rmtree((inner / "postgres").resolve())
