"""Reports how a server with the middleware of the plugin answers requests for the hosts that are its arguments."""

import sys

from cdc_hosts import CdcHosts
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.dags.airflow_process import report


def main() -> None:
    server = Starlette()
    for entry in CdcHosts.fastapi_root_middlewares:
        server.add_middleware(entry["middleware"], **entry["kwargs"])
    client = TestClient(server)
    report({host: client.get("/", headers={"Host": host}).status_code for host in sys.argv[1:]})


if __name__ == "__main__":
    main()
