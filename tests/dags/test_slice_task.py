"""The task of a slice DAG that resident workers run: how it begins, and how its trigger ends it."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from threading import Event, Lock
from typing import Any
from uuid import UUID

import pytest
import structlog
import yaml
from airflow.utils.types import DagRunType
from cdc_dag import chosen_tables, is_by_hand
from cdc_open_store import open_store
from cdc_params import moment_of, refuse_unknown
from cdc_wake_up_policy import WorkerWatch
from structlog.contextvars import merge_contextvars
from structlog.processors import JSONRenderer

from cdc_pipeline.errors import LakeError, StoreAway, UsageError
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.slice_requests import SliceRequest
from cdc_pipeline.metadata_store.states import RequestState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.operations.resident_worker import ResidentWorker, RunLines
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.dag_ids import slice_dag_id
from tests.dags.airflow_process import TriggeredRuns
from tests.support.command_line import query
from tests.support.eventually import eventually
from tests.support.metadata_store import MINUTE, STREAM, Shop, opened_shop
from tests.support.streams import run_sql

NAMES = [TableName(database="shop", schema="public", table=table) for table in ("orders", "customers", "unknown")]


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    """The pipeline has one more table, which is not registered."""
    with opened_shop(store_url) as shop:
        yield shop


def run(request: SliceRequest) -> Mapping[str, Any]:
    structlog.get_logger().info("claim applied")
    if request.table.table == "customers":
        message = "Spark is gone"
        raise LakeError(message)
    return {"table": str(request.table), "claims": 1, "by_hand": request.by_hand}


def environment(shop: Shop, folder: Path) -> dict[str, str]:
    """Of an Airflow that finds the pipeline."""
    document = {
        "name": STREAM.name,
        "lake": "lake",
        "spark": "sc://nowhere:1",
        "source": {"kind": "postgres", "url": "postgresql://nowhere/shop"},
        "tables": [{"name": str(name)} for name in NAMES],
    }
    config = folder / "pipeline.yml"
    config.write_text(yaml.safe_dump(document))
    return {"CDC_CONFIG": str(config), "CDC_METADATA_STORE": shop.url}


@contextmanager
def working(shop: Shop, run: Callable[[SliceRequest], Mapping[str, Any]] = run) -> Iterator[None]:
    """A resident worker takes requests while the block runs."""
    stop, lines = Event(), RunLines(lambda event: str(event["event"]))
    requests = shop.store.slice_requests
    worker = ResidentWorker(owner="resident", lease_length=MINUTE, slots=2, requests=requests, run=run, lines=lines)
    structlog.configure(processors=[merge_contextvars, lines, JSONRenderer()])
    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(worker.work, stop, lambda: None)
        try:
            yield
        finally:
            stop.set()
            work.result(30)
            structlog.reset_defaults()


@pytest.mark.xdist_group("airflow")
def test_a_task_ends_in_the_triggerer_as_its_run_ended_in_the_worker(
    shop: Shop, triggered_runs: TriggeredRuns, tmp_path: Path
) -> None:
    dags = [slice_dag_id(name) for name in NAMES]
    with working(shop):
        found = triggered_runs.run(DagRunType.MANUAL, *dags, **environment(shop, tmp_path))
    done, failed, unknown = (found[dag] for dag in dags)
    assert (done["state"], failed["state"], unknown["state"]) == ("success", "failed", "success")
    assert done["result"] == {"table": "shop.public.orders", "claims": 1, "by_hand": True}
    assert "slice run begins" in done["log"]
    assert "claim applied" in done["log"]
    assert "Spark is gone" in failed["log"]
    assert not any(found[dag]["is_held_back"] for dag in dags), "by a parse while its run went on"
    assert (done["is_parsed"], failed["is_parsed"]) == (False, True), "for a callback, which no DAG has"
    assert unknown["result"]["ended"] == "the table is not registered yet: run cdc setup-source"


@pytest.mark.xdist_group("airflow")
def test_a_run_beside_another_one_of_its_table_ends_like_that_one(
    shop: Shop, triggered_runs: TriggeredRuns, tmp_path: Path
) -> None:
    """A run of an operator. The worker begins after it has asked, when the request counts as one by hand."""
    requests, dag = shop.store.slice_requests, slice_dag_id(shop.orders.name)
    other = requests.ask(UUID(int=1), shop.orders.name, by_hand=False)
    assert other is not None

    def state() -> SliceRequest:
        found = requests.find(other.request_id)
        assert found is not None
        return found

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(triggered_runs.run, DagRunType.OPERATOR_TRIGGERED, dag, **environment(shop, tmp_path))
        assert eventually(lambda: state().by_hand)
        with working(shop):
            found = running.result()[dag]
    assert (state().state, state().attempts) == (RequestState.DONE, 1)
    assert (found["state"], found["result"]) == ("success", state().report)
    assert "another run has asked for a run of shop.public.orders" in found["log"]


@pytest.mark.xdist_group("airflow")
def test_a_run_asks_for_itself_when_the_one_that_it_follows_is_cancelled(
    shop: Shop, triggered_runs: TriggeredRuns, tmp_path: Path
) -> None:
    """As after a task was cleared: its new try finds the request of the old one, whose trigger then cancels it."""
    requests, dag = shop.store.slice_requests, slice_dag_id(shop.orders.name)
    other = requests.ask(UUID(int=1), shop.orders.name, by_hand=False)
    assert other is not None

    def is_followed() -> bool:
        found = requests.find(other.request_id)
        return found is not None and found.by_hand

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(triggered_runs.run, DagRunType.MANUAL, dag, **environment(shop, tmp_path))
        assert eventually(is_followed)
        requests.cancel(other.request_id)
        with working(shop):
            found = running.result()[dag]
    assert (found["state"], found["result"]["claims"]) == ("success", 1)


@pytest.mark.xdist_group("airflow")
def test_a_run_that_slices_started_goes_on_for_the_next_ones_until_its_time_is_over_or_a_person_asks(
    shop: Shop, triggered_runs: TriggeredRuns, tmp_path: Path
) -> None:
    tables, ends, turn = (shop.orders, shop.customers), count(1), Lock()
    dags = {table.table_id: slice_dag_id(table.name) for table in tables}
    run_sql(shop.url, "UPDATE cdc.source_table SET state = 'live'")

    def run(request: SliceRequest) -> Mapping[str, Any]:
        """The first time, a slice comes as soon as the run has ended; the second time, it is applied."""
        if request.report is None and not request.by_hand:
            with turn:
                end = next(ends)
                shop.register(shop.cut(end - 1, end, {(request.table_id, 0): 1}))
        else:
            run_sql(shop.url, f"UPDATE cdc.slice SET state = 'applied' WHERE table_id = {request.table_id}")
        return {"table": str(request.table), "claims": 1, "by_hand": request.by_hand}

    def claims(table: SourceTable) -> int:
        sums = "SELECT coalesce(sum((report ->> 'claims')::int), 0) FROM cdc.slice_request WHERE table_id = {}"
        return int(query(shop.url, sums.format(table.table_id))[0][0])

    with working(shop, run), ThreadPoolExecutor(1) as threads:
        started = threads.submit(
            triggered_runs.run, DagRunType.ASSET_TRIGGERED, *dags.values(), **environment(shop, tmp_path)
        )
        assert eventually(lambda: all(claims(table) == 2 for table in tables))
        run_sql(
            shop.url,
            f"UPDATE cdc.slice_request SET goes_on_until = clock_timestamp() WHERE table_id = {shop.orders.table_id}",
        )
        assert shop.store.slice_requests.ask(UUID(int=1), shop.customers.name, by_hand=True)
        found = started.result()
    for dag in dags.values():
        assert found[dag]["state"] == "success"
        assert "asked again" in found[dag]["log"]
    result = found[dags[shop.orders.table_id]]["result"]
    assert result == {"table": str(shop.orders.name), "claims": 2, "by_hand": False}


@pytest.mark.xdist_group("airflow")
def test_every_slice_task_starts_in_the_triggerer(parsed: Any) -> None:
    assert parsed["import_errors"] == {}
    slices = [dag for name, dag in parsed["dags"].items() if name.startswith("cdc_slice__")]
    assert len(slices) == 4
    for dag in slices:
        (task,) = (found["__var"] for found in dag["serialised"]["dag"]["tasks"])
        assert task["start_from_trigger"] is True
        assert task["start_trigger_args"]["trigger_cls"] == "cdc_trigger.SliceRunTrigger"
        assert "retries" not in task, "none, which is Airflow's default"
        assert [outlet["__var"]["name"].endswith("/lake") for outlet in task["outlets"]] == [True]


def test_runs_share_an_open_store_until_it_does_not_answer(shop: Shop) -> None:
    def found() -> AbstractContextManager[MetadataStore]:
        return open_store(STREAM.name, lambda: shop.url)

    with found() as first, found() as second:
        assert first is second
    away = StoreAway("nobody listens", expected="a server", remedy="start it")
    with pytest.raises(StoreAway), found():
        raise away
    with found() as third:
        assert third is not first
        assert third.slice_requests.find(UUID(int=1)) is None


@pytest.mark.parametrize("until", ["2026-01-31T12:00:00Z", "2026-01-31t12:00:00z", "2026-01-31 13:00:00+01:00"])
def test_a_backfill_reads_every_spelling_of_a_time_that_its_form_takes(until: str) -> None:
    assert moment_of(until) == datetime(2026, 1, 31, 12, tzinfo=UTC)
    with pytest.raises(UsageError, match="is no time"):
        moment_of("2026-01-31T12:00:60Z")


def test_what_airflow_adds_to_the_conf_of_a_run_is_no_unknown_name() -> None:
    refuse_unknown({"openlineage": {"parentRunId": "a"}}, ())
    with pytest.raises(UsageError, match="conf has tables, which"):
        refuse_unknown({"openlineage": {}, "tables": []}, ())


def test_only_runs_that_airflow_starts_by_itself_are_not_by_hand() -> None:
    by_hand = {"manual", "operator_triggered", "asset_materialization"}
    assert {run_type.value for run_type in DagRunType if is_by_hand(run_type)} == by_hand
    assert chosen_tables(DagRunType.OPERATOR_TRIGGERED, {"tables": ["a.b.c"]}) == ["a.b.c"]
    assert chosen_tables(DagRunType.ASSET_TRIGGERED, {"tables": []}) is None


def test_a_run_waits_a_minute_for_a_worker_that_is_not_alive() -> None:
    watch = WorkerWatch(timedelta(seconds=60))
    assert not watch.gives_up(is_alive=False, now=0)
    assert not watch.gives_up(is_alive=False, now=59)
    assert not watch.gives_up(is_alive=True, now=60)
    assert [watch.gives_up(is_alive=False, now=now) for now in (61, 120, 121)] == [False, False, True]
