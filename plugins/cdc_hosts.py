"""Lets Airflow answer only requests for its own host names, as a protection from DNS rebinding."""

import os
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin
from starlette.middleware.trustedhost import TrustedHostMiddleware

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def allowed_hosts() -> list[str]:
    """Returns loopback, the host of `api.base_url`, and the comma-separated hosts of CDC_AIRFLOW_HOSTS."""
    base = urlsplit(conf.get("api", "base_url", fallback="")).hostname
    more = os.environ.get("CDC_AIRFLOW_HOSTS", "").split(",")
    return [*LOOPBACK, *(name.strip() for name in (base or "", *more) if name.strip())]


class CdcHosts(AirflowPlugin):
    """Answers requests for any other `Host` with status 400."""

    name = "cdc_hosts"
    fastapi_root_middlewares = [  # Airflow reads this as a plain class attribute
        {
            "name": "allowed hosts",
            "middleware": TrustedHostMiddleware,
            "kwargs": {"allowed_hosts": allowed_hosts(), "www_redirect": False},
        }
    ]
