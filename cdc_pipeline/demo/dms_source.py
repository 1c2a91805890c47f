"""The demos over change files and over Kinesis: MariaDB, and a replication task that writes as AWS DMS does."""

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cdc_pipeline.demo.dms_task import NOTED
from cdc_pipeline.demo.seed import Scale
from cdc_pipeline.demo.servers import ensure_server
from cdc_pipeline.demo.shop_behind import source_as, start_shop
from cdc_pipeline.errors import SetupError
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.aws import KinesisSource
from cdc_pipeline.settings.installation.ports import LOOPBACK, is_listening
from cdc_pipeline.settings.installation.state import Installation, home_of, open_installation, write_private_text
from cdc_pipeline.sources.kinesis.calls import connected

_SERVER = "moto_server"
_CREDENTIALS = "[default]\naws_access_key_id = demo\naws_secret_access_key = demo\n"
"""The server takes any: it is in memory and listens on this machine alone."""
_SHARDS = 2
_SCALE = Scale(customers=500, products=200, orders=3_000)
"""The server takes about a second for 500 records."""


def begin_files(settings: Settings, config: Path) -> str:
    """Starts MariaDB and the task. Returns the URL of the shop for its sessions when the full load is in files."""
    installation = open_installation(home_of(settings, os.environ))
    url = start_shop(installation, config.parent)
    _start_task(installation, config)
    return url


def begin_kinesis(settings: Settings, config: Path) -> str:
    """Starts a Kinesis server, MariaDB and the task. Returns the URL of the shop when the full load is in the stream.

    Raises SetupError if an earlier demo's stream ended with its server, which keeps it in memory.
    """
    installation, folder, source = (
        open_installation(home_of(settings, os.environ)),
        config.parent,
        source_as(settings, KinesisSource, "kinesis"),
    )
    write_private_text(folder / str(source.credentials_file), _CREDENTIALS)
    _start_server(installation, folder, urlsplit(source.endpoint or "").port or 0)
    client: Any = connected("kinesis", source, folder)
    if source.stream not in client.list_streams()["StreamNames"]:
        if (folder / NOTED).exists():
            raise SetupError(
                f"the stream of the demo in {folder} is gone: its server kept it in memory, until `make down`",
                remedy=f"remove {folder} and start the demo again",
            )
        client.create_stream(StreamName=source.stream, ShardCount=_SHARDS)
    url = start_shop(installation, folder, scale=_SCALE)
    _start_task(installation, config)
    return url


def _start_server(installation: Installation, folder: Path, port: int) -> None:
    program = Path(sys.executable).parent / _SERVER
    if not program.exists():
        raise SetupError(f"there is no {_SERVER} in {program.parent}", remedy="run `make demo SOURCE=kinesis`")
    command = (str(program), "--host", LOOPBACK, "--port", str(port))
    ensure_server(installation, name="kinesis", command=command, folder=folder, answers=lambda: is_listening(port))


def _start_task(installation: Installation, config: Path) -> None:
    command = (sys.executable, "-m", "cdc_pipeline.demo.dms_task", str(config))
    noted = config.parent / NOTED
    ensure_server(installation, name="dms", command=command, folder=config.parent, answers=noted.exists)
