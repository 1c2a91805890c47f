"""Servers on this machine are reached without the proxy that the environment names."""

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from select import select

import pytest

CALLS = {
    "Spark": """
import sys
from cdc_pipeline.lake.session import cancel
cancel(f"sc://127.0.0.1:{sys.argv[1]}/;token=x", "00000000-0000-0000-0000-000000000000", "tag")
""",
    "Airflow": """
import sys
from cdc_pipeline.demo.airflow_api import open_airflow
from tests.support.change_files import NOWHERE
from dataclasses import replace
with open_airflow(replace(NOWHERE, airflow_url=f"http://127.0.0.1:{sys.argv[1]}")):
    pass
""",
}
CALLED_WITHIN_SECONDS = 60


@pytest.mark.parametrize("server", CALLS)
def test_a_server_on_this_machine_is_called_itself_and_no_proxy(server: str) -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as wanted,
        closing(socket.create_server(("127.0.0.1", 0))) as proxy,
    ):
        command = [sys.executable, "-c", CALLS[server], str(wanted.getsockname()[1])]
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        given = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        environment = given | {"http_proxy": url, "https_proxy": url, "PYTHONPATH": str(Path.cwd())}
        with subprocess.Popen(command, env=environment) as caller:
            try:
                called, _, _ = select([wanted, proxy], [], [], CALLED_WITHIN_SECONDS)
            finally:
                caller.kill()
    assert called == [wanted]
