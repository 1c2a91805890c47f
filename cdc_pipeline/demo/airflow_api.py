"""The calls of Airflow's REST API that the demo needs, in place of clicks in the UI."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from threading import Event
from typing import Any

import httpx

from cdc_pipeline.errors import CdcError
from cdc_pipeline.launcher.airflow import ADMINISTRATOR
from cdc_pipeline.settings.installation.endpoints import Endpoints

_ENDED = ("success", "failed")
_POLL_SECONDS = 0.5
_PAGE = 20


class AirflowRefused(CdcError):
    """Airflow answered with an error, or did not do in time what it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowApi:
    """Raises AirflowRefused when Airflow does not do what it was asked to."""

    client: httpx.Client

    def wait_for_dags(self, dag_ids: tuple[str, ...], timeout_seconds: float) -> None:
        """Waits until Airflow has parsed all of these DAGs."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            unknown = set(dag_ids).difference(self._dag_ids())
            if not unknown:
                return
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(unknown))
                raise AirflowRefused(f"Airflow does not know {missing}", remedy="look at its import errors in the UI")
            _pause()

    def _dag_ids(self) -> Iterator[str]:
        """Asks page by page: an answer has at most `api.maximum_page_limit` DAGs, however many are asked for."""
        seen, total = 0, 1
        while seen < total:
            answer = self._call("GET", "dags", limit=_PAGE, offset=seen, order_by="dag_id")
            yield from (dag["dag_id"] for dag in answer["dags"])
            seen, total = seen + _PAGE, answer["total_entries"]

    def set_paused(self, dag_id: str, *, paused: bool) -> None:
        self._call("PATCH", f"dags/{dag_id}", body={"is_paused": paused})

    def trigger(self, dag_id: str, conf: Mapping[str, Any]) -> str:
        """Starts a run and returns its id."""
        run = self._call("POST", f"dags/{dag_id}/dagRuns", body={"conf": dict(conf), "logical_date": None})
        return str(run["dag_run_id"])

    def wait_for_run(self, dag_id: str, run_id: str, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while True:
            state = self._call("GET", f"dags/{dag_id}/dagRuns/{run_id}")["state"]
            if state == "success":
                return
            if state in _ENDED or time.monotonic() > deadline:
                raise AirflowRefused(f"the run {run_id} of {dag_id} is {state}", expected="success")
            _pause()

    def backfill(self, dag_id: str, *, start: datetime, end: datetime, conf: Mapping[str, Any]) -> int:
        """Starts a backfill over [start, end] like the form of the UI, and returns its id. `conf`: the DAG's params."""
        body = {
            "dag_id": dag_id,
            "from_date": start.isoformat(),
            "to_date": end.isoformat(),
            "max_active_runs": 1,
            "reprocess_behavior": "completed",
            "dag_run_conf": dict(conf),
        }
        return int(self._call("POST", "backfills", body=body)["id"])

    def wait_for_backfill(self, backfill_id: int, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while self._call("GET", f"backfills/{backfill_id}")["completed_at"] is None:
            if time.monotonic() > deadline:
                raise AirflowRefused(
                    f"the backfill {backfill_id} did not end", expected=f"its end within {timeout_seconds:.0f} s"
                )
            _pause()

    def _call(self, method: str, path: str, *, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        try:
            answer = self.client.request(method, f"/api/v2/{path}", json=body, params=query)
        except httpx.HTTPError as error:
            raise AirflowRefused(
                f"Airflow did not answer to {method} {path}: {type(error).__name__}: {error}",
                expected=f"an answer within {self.client.timeout.read or 0:.0f} s",
                remedy="read the log of the process api-server",
            ) from error
        if answer.is_error:
            raise AirflowRefused(f"Airflow answered {answer.status_code} to {method} {path}: {answer.text[:500]}")
        return answer.json()


@contextmanager
def open_airflow(endpoints: Endpoints, *, timeout_seconds: float = 30) -> Iterator[AirflowApi]:
    """Logs in as the only user of an embedded Airflow."""
    url = endpoints.airflow_url
    # trust_env=False: a proxy that the environment names could not reach a server on loopback.
    with httpx.Client(base_url=url, timeout=timeout_seconds, trust_env=False) as client:
        answer = client.post("/auth/token", json={"username": ADMINISTRATOR, "password": endpoints.airflow_password})
        if answer.is_error:
            raise AirflowRefused(f"Airflow at {url} gave no token ({answer.status_code})", expected="an embedded one")
        client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
        yield AirflowApi(client=client)


def _pause() -> None:
    Event().wait(_POLL_SECONDS)
