"""A Spark server that is gone is told apart from one that refuses: the first is no table's fault."""

import pytest
from grpc import StatusCode
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import AnalysisException, SparkConnectGrpcException

from cdc_pipeline.errors import LakeAway, LakeError
from cdc_pipeline.lake.session import SessionLost, spark_calls


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
