"""A Spark server that is gone is told apart from one that refuses: the first is no table's fault."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from grpc import StatusCode
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import AnalysisException, SparkConnectGrpcException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicy

from cdc_pipeline.errors import LakeAway, LakeError
from cdc_pipeline.lake.session import cleaned_up, leave_lost, untuned_session
from cdc_pipeline.lake.spark_errors import SessionLost, spark_calls
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step


def test_an_error_names_its_innermost_cause() -> None:
    trace = "org.SparkException\n\tat a.B.c(B:1)\nCaused by: x.Failed: see below\n\tat d.E(E:2)\n"
    error = SparkConnectGrpcException(
        message="Task failed.", server_stacktrace=f"{trace}Caused by: java.io.IOException: File name too long\n\tat f"
    )
    with pytest.raises(LakeError) as caught, spark_calls("merging"):
        raise error
    assert caught.value.found == (
        "Spark failed while merging: Task failed.; caused by java.io.IOException: File name too long"
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SparkConnectGrpcException(message="no route", grpc_status_code=StatusCode.UNAVAILABLE), LakeAway),
        (SparkConnectGrpcException(message="x", errorClass="INVALID_HANDLE.SESSION_CHANGED"), SessionLost),
        (AnalysisException(message="no such column", grpc_status_code=StatusCode.INTERNAL), LakeError),
        (PySparkException(message="it is broken"), LakeError),
    ],
)
def test_whoever_cannot_be_reached_is_away_and_whoever_answers_is_not(
    error: PySparkException, expected: type[LakeError]
) -> None:
    with pytest.raises(LakeError) as caught, spark_calls("merging"):
        raise error
    assert type(caught.value) is expected
    assert caught.value.outage is issubclass(expected, LakeAway)


@pytest.mark.filterwarnings("ignore:.RETRIES_EXCEEDED")
def test_after_a_server_that_is_away_nothing_is_waited_for_a_second_time() -> None:
    """A worker would hold its lease meanwhile, and show the error of the clean-up."""
    session = untuned_session("sc://127.0.0.1:1")
    given = [DefaultPolicy(max_retries=7, initial_backoff=1, max_backoff=1)]
    session.client.set_retry_policies(given)
    seen = list[RetryPolicy]()

    def clean() -> None:
        seen.extend(session.client.get_retry_policies())
        session.conf.unset("a")

    with pytest.raises(SparkConnectGrpcException) as caught, cleaned_up(session, clean):
        session.conf.set("a", "b")
    assert not isinstance(caught.value.__context__, SparkConnectGrpcException)
    assert [policy.max_retries for policy in seen] == [3]
    assert list(session.client.get_retry_policies()) == given
    leave_lost(session)


@pytest.mark.filterwarnings("ignore:.RETRIES_EXCEEDED")
@pytest.mark.parametrize("write", [lambda session: session.conf.set("a", "b"), lambda _: None])
def test_a_session_in_which_confs_may_have_stayed_is_used_no_more(write: Callable[[SparkSession], None]) -> None:
    """The transaction of one commit would let Delta pass over another write. The server is away before or after."""
    session = untuned_session("sc://127.0.0.1:1")
    session.client.set_retry_policies([DefaultPolicy(max_retries=0)])
    with pytest.raises(SparkConnectGrpcException), cleaned_up(session, lambda: session.conf.unset("a")):
        write(session)
    with pytest.raises(SessionLost), spark_calls("writing"):
        session.range(1).collect()


def test_a_failed_clean_up_shows_its_error_through_the_blocks_around_it() -> None:
    session = untuned_session("sc://127.0.0.1:1")

    def clean() -> None:
        raise AnalysisException(message="the driver is busy")

    with (
        pytest.raises(AnalysisException, match="the driver is busy"),
        cleaned_up(session, session.catalog.clearCache),
        cleaned_up(session, clean),
    ):
        pass


def test_a_lake_opens_another_session_after_a_failed_clean_up_closed_its_own(tmp_path: Path) -> None:
    lake = SparkLake(
        open_session=lambda: untuned_session("sc://127.0.0.1:1"),
        store=LocalObjectStore(tmp_path),
        clock=lambda: datetime.now(UTC),
        on_step=no_step,
    )
    first = lake.session
    assert lake.session is first
    leave_lost(first)
    assert not lake.session.client.is_closed
    leave_lost(lake.session)


@pytest.mark.parametrize(
    ("condition", "remedy"),
    [
        ("PATH_NOT_FOUND", "bring the file back"),
        ("FAILED_READ_FILE.FILE_NOT_EXIST", "bring the file back"),
        ("FAILED_READ_FILE.NO_HINT", "run the same again if the store did not answer; otherwise bring the file back"),
        ("DELTA_VERSIONS_NOT_CONTIGUOUS", "bring the log's files back"),
        ("DIVIDE_BY_ZERO", "the same call may be repeated"),
    ],
)
def test_an_error_about_files_of_the_lake_says_how_to_bring_them_back(condition: str, remedy: str) -> None:
    with pytest.raises(LakeError) as caught, spark_calls("merging"):
        raise AnalysisException(message="no such file", errorClass=condition)
    assert caught.value.found == "Spark failed while merging: no such file"
    assert caught.value.remedy.startswith(remedy)
