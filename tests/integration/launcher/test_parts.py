"""Single parts for one command."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import psutil
import pytest

from cdc_pipeline.errors import LeaseBusy, SetupError
from cdc_pipeline.launcher.control import up
from cdc_pipeline.launcher.health import is_healthy
from cdc_pipeline.launcher.marked import marks
from cdc_pipeline.launcher.parts import running
from cdc_pipeline.launcher.users import one_user
from cdc_pipeline.settings.installation.ports import is_listening
from cdc_pipeline.settings.installation.state import open_installation
from tests.support.eventually import eventually
from tests.support.shop_settings import shop_settings
from tests.support.streams import database_of

POSTGRES = frozenset({"postgres"})
ANOTHER_COMMAND = """
import sys
from pathlib import Path
from cdc_pipeline.launcher.parts import running
from tests.support.shop_settings import shop_settings
folder, home = map(Path, sys.argv[1:])
with running(shop_settings(folder), config=folder / "pipeline.yml", home=home, parts=frozenset({"postgres"})):
    print("at work", flush=True)
    sys.stdin.readline()
"""
PROMPTLY_SECONDS = 20
STARTS_FOR_SECONDS = 5


@contextmanager
def another_command(
    folder: Path, home: Path, *, at_work: bool = True, environment: Mapping[str, str] = os.environ
) -> Iterator["subprocess.Popen[str]"]:
    """At work with the embedded servers until it reads a line; `at_work`: when the block begins."""
    command = [sys.executable, "-c", ANOTHER_COMMAND, str(folder), str(home)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**environment, "PYTHONPATH": str(Path.cwd())},
    ) as process:
        assert process.stdout is not None
        assert not at_work or process.stdout.readline() == "at work\n"
        yield process


def test_postgres_and_its_databases_are_there_inside_the_block_and_gone_after_it(tmp_path: Path, home: Path) -> None:
    settings, config = shop_settings(tmp_path), tmp_path / "pipeline.yml"
    with running(settings, config=config, home=home, parts=POSTGRES) as endpoints:
        assert database_of(endpoints.source_url) == "shop"
        assert is_healthy(endpoints.source_url)
        assert is_healthy(endpoints.metadata_store_url)
    assert not is_healthy(endpoints.source_url)


def test_servers_without_tls_start_where_the_variables_of_libpq_ask_for_it(tmp_path: Path, home: Path) -> None:
    asking = os.environ | {"PGSSLMODE": "verify-full", "PGCHANNELBINDING": "require"}
    with another_command(tmp_path, home, environment=asking) as process:
        process.communicate("end", timeout=PROMPTLY_SECONDS)
        assert process.returncode == 0


def test_a_command_inside_another_uses_what_the_outer_one_started(tmp_path: Path, home: Path) -> None:
    settings, config = shop_settings(tmp_path), tmp_path / "pipeline.yml"
    with running(settings, config=config, home=home, parts=POSTGRES) as outer:
        with running(settings, config=config, home=home, parts=POSTGRES) as inner:
            assert inner == outer
        assert is_healthy(outer.source_url)


def test_the_command_that_started_the_servers_returns_while_another_one_uses_them(tmp_path: Path, home: Path) -> None:
    settings, config = shop_settings(tmp_path), tmp_path / "pipeline.yml"
    with (
        another_command(tmp_path, home) as starter,
        running(settings, config=config, home=home, parts=POSTGRES) as endpoints,
    ):
        starter.communicate("end", timeout=PROMPTLY_SECONDS)
        assert starter.returncode == 0
        assert is_healthy(endpoints.source_url)
        with another_command(tmp_path, home) as third:
            third.communicate("end", timeout=PROMPTLY_SECONDS)
        assert is_healthy(endpoints.source_url)
    assert not is_healthy(endpoints.source_url)


def test_servers_whose_last_user_was_killed_end_too(tmp_path: Path, home: Path) -> None:
    settings, config = shop_settings(tmp_path), tmp_path / "pipeline.yml"
    with another_command(tmp_path, home) as killed:
        with running(settings, config=config, home=home, parts=POSTGRES) as endpoints:
            pass
        assert is_healthy(endpoints.source_url)
        killed.kill()
        assert eventually(lambda: not is_healthy(endpoints.source_url))


@contextmanager
def server_left_starting(folder: Path, home: Path) -> Iterator[psutil.Process]:
    """A server that a killed command left. SIGSTOP makes its start take longer.

    The caller was a user before the kill, so nobody ends the server.
    """
    with running(shop_settings(folder), config=folder / "pipeline.yml", home=home, parts=POSTGRES):
        pass
    stored, is_known = home / "postgres" / "data" / "postmaster.pid", re.compile(r"\d+\n")
    with one_user(open_installation(home)), another_command(folder, home, at_work=False) as starter:
        while not (stored.exists() and (found := is_known.match(stored.read_text(encoding="utf-8")))):
            assert starter.poll() is None
        starter.kill()
        starter.wait(PROMPTLY_SECONDS)  # its death would wake a stopped server
        server = psutil.Process(int(found[0]))
        server.suspend()
        yield server


def test_a_server_that_a_killed_command_left_starting_is_waited_for(tmp_path: Path, home: Path) -> None:
    settings, config = shop_settings(tmp_path), tmp_path / "pipeline.yml"
    with server_left_starting(tmp_path, home) as server:
        awake = Timer(STARTS_FOR_SECONDS, server.resume)
        awake.start()
        with running(settings, config=config, home=home, parts=POSTGRES) as endpoints:
            assert is_healthy(endpoints.source_url)


def test_a_server_that_dies_while_it_is_waited_for_is_named_at_once(tmp_path: Path, home: Path) -> None:
    settings, config = shop_settings(tmp_path), tmp_path / "pipeline.yml"
    with server_left_starting(tmp_path, home) as server:
        dies = Timer(STARTS_FOR_SECONDS, server.kill)
        dies.start()
        with (
            pytest.raises(SetupError, match=r"postgres ended while it started; the end of .*postgres\.log"),
            running(settings, config=config, home=home, parts=POSTGRES),
        ):
            pass


def test_a_command_starts_no_second_server_beside_that_of_a_supervisor_that_is_gone(tmp_path: Path, home: Path) -> None:
    settings, config, installation = shop_settings(tmp_path), tmp_path / "pipeline.yml", open_installation(home)
    port = installation.ports["postgres"]
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    environment = os.environ | marks(installation.identity, "postgres")
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as left:
        try:
            assert eventually(lambda: is_listening(port))
            with (
                pytest.raises(SetupError, match=r"postgres of .* runs without its supervisor; .*run `cdc up`"),
                running(settings, config=config, home=home, parts=POSTGRES),
            ):
                pass
        finally:
            left.kill()
    assert open_installation(home).ports == installation.ports


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
        assert not is_healthy(endpoints.airflow_database_url)


def test_a_home_that_the_account_cannot_enter_gets_its_data_elsewhere_and_keeps_its_modes(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(parents=True, mode=0o700)
    settings, config, inner = shop_settings(closed), closed / "pipeline.yml", closed / "home"
    try:
        with running(settings, config=config, home=inner, parts=POSTGRES) as endpoints:
            assert is_healthy(endpoints.source_url)
        assert closed.stat().st_mode & 0o777 == 0o700
        assert (inner / "postgres").is_symlink() == (os.geteuid() == 0)
    finally:
        shutil.rmtree((inner / "postgres").resolve())
