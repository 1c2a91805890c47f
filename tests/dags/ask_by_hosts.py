"""Reports by line how a server with the middleware of the plugin answers requests for the hosts.

A line: `imported` for the middleware that Airflow takes, made in the environment of the import, or `called` for that of
the line's environment; and hosts.
"""

from typing import Any

from cdc_hosts import CdcHosts, middlewares
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.dags.airflow_process import lines, report


def answers(entries: list[dict[str, Any]], hosts: list[str]) -> dict[str, int]:
    server = Starlette()
    for entry in entries:
        server.add_middleware(entry["middleware"], **entry["kwargs"])
    client = TestClient(server)
    return {host: client.get("/", headers={"Host": host}).status_code for host in hosts}


def main() -> None:
    for whose, *hosts in lines():
        report(answers(CdcHosts.fastapi_root_middlewares if whose == "imported" else middlewares(), hosts))


if __name__ == "__main__":
    main()
