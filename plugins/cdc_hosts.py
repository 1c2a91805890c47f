"""Airflow answers under its own names alone: no page of another site reaches it by a name that turns to loopback."""

import os
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin
from starlette.middleware.trustedhost import TrustedHostMiddleware

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def allowed_hosts() -> list[str]:
    """Loopback, the host of `api.base_url`, and those of CDC_AIRFLOW_HOSTS, which are parted by commas."""
    base = urlsplit(conf.get("api", "base_url", fallback="")).hostname
    more = os.environ.get("CDC_AIRFLOW_HOSTS", "").split(",")
    return [*LOOPBACK, *(name.strip() for name in (base or "", *more) if name.strip())]


class CdcHosts(AirflowPlugin):
    """Every request with another `Host` header is answered with 400 (DNS rebinding)."""

    name = "cdc_hosts"
    fastapi_root_middlewares = [  # as Airflow's plugins declare theirs
        {
            "name": "allowed hosts",
            "middleware": TrustedHostMiddleware,
            "kwargs": {"allowed_hosts": allowed_hosts(), "www_redirect": False},
        }
    ]
