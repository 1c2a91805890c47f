"""Prepares an installation on this machine and returns the processes to start."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.account import ROOT_STATE_FOLDER, Account, can_reach, create_reachable, server_account
from cdc_pipeline.launcher.airflow import ADMINISTRATOR, passwords_file
from cdc_pipeline.launcher.deployment import this_machine
from cdc_pipeline.launcher.java import require_java
from cdc_pipeline.launcher.postgres import PostgresServer, find_binaries, initialize, reachable_binaries
from cdc_pipeline.launcher.processes import Process, processes
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.state import Installation, with_free_ports, write_document
from cdc_pipeline.settings.work import EMBEDDED


def plan(
    settings: Settings, *, config: Path, installation: Installation, free: Iterable[str]
) -> tuple[Installation, tuple[Process, ...]]:
    """Creates folders, the server's data and passwords, and describes the processes.

    `free`: names of ports whose server is not running. A port that another process has taken is replaced.
    """
    if settings.spark == EMBEDDED:
        require_java(os.environ)
    renewed = with_free_ports(installation, free)
    server = embedded_server(renewed)
    initialize(server)
    for name in ("spark", "airflow"):
        (renewed.home / name).mkdir(mode=0o700, exist_ok=True)
    write_document(Path(passwords_file(str(renewed.home))), {ADMINISTRATOR: renewed.airflow_password})
    deployment = this_machine(settings, config, renewed, tuple(server.command()))
    return renewed, processes(settings, deployment)


def embedded_server(installation: Installation) -> PostgresServer:
    account = server_account()
    folder = _server_folder(installation.home, account)
    return PostgresServer(
        folder=folder,
        binaries=reachable_binaries(find_binaries(os.environ), account, folder.parent),
        port=installation.ports["postgres"],
        password=installation.postgres_password,
        account=account,
    )


def _server_folder(home: Path, account: Account | None) -> Path:
    """`<home>/postgres`. If the account cannot enter `home`, this is a link to a folder that it can enter."""
    folder = home / "postgres"
    if folder.exists():
        return folder.resolve()
    if folder.is_symlink():
        raise SetupError(
            f"{folder} is a link to {folder.readlink()}, which is not there",
            expected="the folder with the data of the embedded server",
            remedy="mount it or bring it back; to begin with an empty server, remove the link",
        )
    if can_reach(account, home):
        folder.mkdir()
        return folder
    create_reachable(ROOT_STATE_FOLDER)
    elsewhere = Path(tempfile.mkdtemp(prefix="postgres-", dir=ROOT_STATE_FOLDER))
    folder.symlink_to(elsewhere)
    return elsewhere
