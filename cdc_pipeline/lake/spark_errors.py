"""The errors of Spark and of the connection to it, as errors of the lake."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from cdc_pipeline.errors import LakeAway, LakeError, damaged_file, unread_file
from cdc_pipeline.lake.delta_log import damaged_log

_LOST = ("INVALID_HANDLE", "NO_ACTIVE_SESSION", "NO_ACTIVE_OR_DEFAULT_SESSION")
_FILE_DAMAGED, _VERSION_MISSING = ("PATH_NOT_FOUND", "FAILED_READ_FILE"), "DELTA_VERSIONS_NOT_CONTIGUOUS"
_FILE_UNREAD = "FAILED_READ_FILE.NO_HINT"
"""Any error of a read: a damaged file, or a store that does not answer."""
UNREACHABLE = "UNAVAILABLE"
_UNAUTHENTICATED = "UNAUTHENTICATED"
_STACK_TRACE, _CAUSE = "JVM stacktrace:", "Caused by: "


class SessionLost(LakeAway):
    """The Spark server was restarted, or it ended the session. Only a new session can continue."""


@contextmanager
def spark_calls(doing: str) -> Iterator[None]:
    """Turns errors of Spark and its connection into LakeError, or LakeAway if the server no longer answers.

    `doing` describes the call in the error.
    """
    try:
        yield
    except PySparkException as error:
        if has_status(error, _UNAUTHENTICATED):
            raise LakeError(
                f"the Spark Connect server refused {doing}: it does not know the token, or was sent none",
                expected="the token that the server was started with (spark.connect.authenticate.token)",
                remedy="give it as spark: sc://host:port/;token=... in CDC_SPARK or pipeline.yml",
            ) from error
        found, condition = f"Spark failed while {doing}: {_words(error)}", error.getCondition() or ""
        if condition.startswith(_FILE_DAMAGED):
            raise (unread_file if condition == _FILE_UNREAD else damaged_file)(found) from error
        if condition == _VERSION_MISSING:
            raise damaged_log(found, expected="all versions up to the latest") from error
        raise _kind(error)(
            found,
            expected="the Spark Connect server to answer",
            remedy="the same call may be repeated: the fence in the lake prevents a double effect",
        ) from error


def _words(error: PySparkException) -> str:
    """Returns Spark's message, with that of the innermost cause: the message itself may only name what was tried."""
    message, _, trace = str(error).partition(_STACK_TRACE)
    if isinstance(error, SparkConnectGrpcException):
        trace = error.getStackTrace() or trace
    causes = [line.removeprefix(_CAUSE) for line in trace.splitlines() if line.startswith(_CAUSE)]
    because = f"; caused by {causes[-1].strip()[:1000]}" if causes else ""
    return f"{message.strip()[:2000]}{because}"


def _kind(error: PySparkException) -> type[LakeError]:
    if (error.getCondition() or "").startswith(_LOST):
        return SessionLost
    return LakeAway if has_status(error, UNREACHABLE) else LakeError


def has_status(error: PySparkException, name: str) -> bool:
    """Returns whether the connection ended the call with that status of gRPC."""
    return isinstance(error, SparkConnectGrpcException) and error.getGrpcStatusCode().name == name
