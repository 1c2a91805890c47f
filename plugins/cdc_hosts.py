"""Lets Airflow answer only requests for its own host names, as a protection from DNS rebinding.

Only the Airflow of `cdc up` and of the compose file, and one whose environment has CDC_AIRFLOW_HOSTS. The host names of
any other are not known here.
"""

import os
from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin
from starlette.middleware.trustedhost import TrustedHostMiddleware

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
IS_EMBEDDED, HOSTS = "CDC_AIRFLOW_IS_EMBEDDED", "CDC_AIRFLOW_HOSTS"
URLS = (("api", "base_url"), ("core", "execution_api_server_url"))


def allowed_hosts() -> list[str]:
    """Returns loopback, the hosts of Airflow's own URLs, and the comma-separated hosts of CDC_AIRFLOW_HOSTS."""
    own = (urlsplit(conf.get(section, name, fallback="")).hostname or "" for section, name in URLS)
    more = os.environ.get(HOSTS, "").split(",")
    return [*LOOPBACK, *(name.strip() for name in (*own, *more) if name.strip())]


def middlewares() -> list[dict[str, Any]]:
    if not (os.environ.get(IS_EMBEDDED) or os.environ.get(HOSTS)):
        return []
    return [
        {
            "name": "allowed hosts",
            "middleware": TrustedHostMiddleware,
            "kwargs": {"allowed_hosts": allowed_hosts(), "www_redirect": False},
        }
    ]


class CdcHosts(AirflowPlugin):
    """Answers requests for any other `Host` with status 400."""

    name = "cdc_hosts"
    fastapi_root_middlewares = middlewares()  # Airflow reads this as a plain class attribute
