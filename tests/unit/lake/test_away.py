"""A Spark server that is gone is told apart from one that refuses: the first is no table's fault."""

import pytest
from grpc import StatusCode
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import AnalysisException, SparkConnectGrpcException

from cdc_pipeline.errors import LakeAway, LakeError
from cdc_pipeline.lake.session import SessionLost, spark_calls


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
