"""A Spark Connect session, tuned for small merges and apart from every other session."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import cast

import structlog
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder, SparkConnectClient
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as RemoteSession

from cdc_pipeline.errors import LakeAway, LakeError, SettingsError
from cdc_pipeline.libpq import is_this_machine

log = structlog.get_logger()

OpenSession = Callable[[], SparkSession]
CancelSession = Callable[[str, str], object]
"""Of a session and the tag of a claim: see `cancel`."""
# Spark's default for timestamps, INT96, has nanoseconds in other readers: they wrap before 1677 and after 2262.
TUNING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.variable.substitute": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "parquet.page.verify-checksum.enabled": "true",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.commit.idempotencyCheck.enabled": "true",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.databricks.delta.optimize.maxFileSize": str(128 << 20),
    "spark.databricks.delta.optimize.minFileSize": str(16 << 20),
}

_LONGEST_PAUSE_MILLISECONDS = 2_000
_MOST_TRIES = 45
"""One and a half minutes; the longest pause is what a restarted server waits for us."""
_FEW_TRIES = 3
_USER = "cdc"
_SCHEME = "sc://"
_PARAMETERS = "/;"
"""Between the address and the parameters of a URL, of which one may be the token."""
_LOST = ("INVALID_HANDLE", "NO_ACTIVE_SESSION", "NO_ACTIVE_OR_DEFAULT_SESSION")
_UNREACHABLE = "UNAVAILABLE"
_UNAUTHENTICATED = "UNAUTHENTICATED"
_STACK_TRACE = "JVM stacktrace:"


class SessionLost(LakeAway):
    """The Spark server was started again, or has ended the session: only another session can go on."""


def claim_tag(claim_id: str) -> str:
    """Under which every operation of a claim runs."""
    return f"claim-{claim_id}"


def session_name(session: SparkSession) -> str:
    """By which the server knows it, and `cancel` finds it."""
    return str(vars(session.client)["_session_id"])


def cancel(url: str, session: str, tag: str) -> tuple[str, ...]:
    """Ids of what ran under `tag` in that session and is interrupted. The session ends: its client gets SessionLost.

    A session that is gone already is not made anew for longer than this takes.
    """
    with spark_calls(f"cancelling {tag} in the session {session}"):
        client = client_of(url, session)
        try:
            client.set_retry_policies([DefaultPolicy(max_retries=_FEW_TRIES)])
            found = client.interrupt_tag(tag)
            with suppress(PySparkException):  # the server complains where something still runs, and ends the session
                client.release_session()
        finally:
            client.close()
    log.warning("left behind and cancelled", session=session, tag=tag, operations=found)
    return tuple(found or ())


def _with(url: str, *parameters: str) -> str:
    """Sessions of one user find each other by their id."""
    place, _, given = url.partition(_PARAMETERS)
    return f"{place.rstrip('/')}{_PARAMETERS}{';'.join(filter(None, (given, f'user_id={_USER}', *parameters)))}"


def client_of(url: str, session: str) -> SparkConnectClient:
    """Another client of a session that somebody opened; the caller closes it."""
    return SparkConnectClient(_Channel(_with(url, f"session_id={session}")))


class _Channel(DefaultChannelBuilder):
    """Sends the token of the URL as a header; PySpark itself would not, without TLS, to another host than `localhost`.

    A token in plain text leaves the machine only where the URL says so: `_check_encrypted`.
    """

    def metadata(self) -> Iterable[tuple[str, str]]:
        plain = self.token is not None and not self.use_ssl
        return [*super().metadata(), *([("authorization", f"Bearer {self.token}")] if plain else [])]

    @property
    def secure(self) -> bool:
        """Whether the channel is encrypted."""
        return self.use_ssl


def _check_encrypted(url: str) -> None:
    """Everything that a client sends, its token too, can be read on the way to another machine."""
    address, _, parameters = url.removeprefix(_SCHEME).partition(_PARAMETERS)
    if not is_this_machine(address.rpartition(":")[0].strip("[]")) and "use_ssl=" not in parameters:
        raise SettingsError(
            f"the Spark Connect server {address} is on another machine, and would be reached in plain text",
            expected="use_ssl=true in its URL, or use_ssl=false where the network between is trusted",
            remedy=f"write spark: {_SCHEME}{address}{_PARAMETERS}use_ssl=true",
        )


def untuned_session(url: str) -> SparkSession:
    """As PySpark gives it to everybody."""
    return cast("SparkSession", RemoteSession.builder.channelBuilder(_Channel(_with(url))).create())


def connect(url: str, *, first: Callable[[], None] | None = None) -> SparkSession:
    """A session of its own: confs set in it are seen by nobody else. Raises LakeError when nothing answers."""
    _check_encrypted(url)
    if first is not None:
        first()
    with spark_calls(f"connecting to Spark at {url.partition(_PARAMETERS)[0]}"):
        session = untuned_session(url)
        try:
            policy = DefaultPolicy(max_retries=_MOST_TRIES, max_backoff=_LONGEST_PAUSE_MILLISECONDS)
            session.client.set_retry_policies([policy])
            for name, value in TUNING.items():
                session.conf.set(name, value)
        except BaseException:
            leave_lost(session)
            raise
    return session


def leave_lost(session: SparkSession) -> None:
    """On our side alone: the server does not know it, and PySpark would take it for the default session for ever."""
    session.client.close()
    session.stop()


@contextmanager
def spark_calls(doing: str) -> Iterator[None]:
    """Turn whatever Spark or its connection raises into LakeError; into LakeAway when nobody answers any more."""
    try:
        yield
    except PySparkException as error:
        if _has_status(error, _UNAUTHENTICATED):
            raise LakeError(
                f"the Spark Connect server refused {doing}: it does not know the token, or was sent none",
                expected="the token that the server was started with (spark.connect.authenticate.token)",
                remedy="give it as spark: sc://host:port/;token=... in CDC_SPARK or pipeline.yml",
            ) from error
        raise _kind(error)(
            f"Spark failed while {doing}: {str(error).partition(_STACK_TRACE)[0].strip()[:2000]}",
            expected="the Spark Connect server to answer",
            remedy="the same call may be repeated: the fence in the lake prevents a double effect",
        ) from error


def _kind(error: PySparkException) -> type[LakeError]:
    if (error.getCondition() or "").startswith(_LOST):
        return SessionLost
    return LakeAway if _has_status(error, _UNREACHABLE) else LakeError


def _has_status(error: PySparkException, name: str) -> bool:
    return isinstance(error, SparkConnectGrpcException) and error.getGrpcStatusCode().name == name


@contextmanager
def configured(session: SparkSession, confs: dict[str, str]) -> Iterator[None]:
    """Set and in any case unset: a txn version or user metadata left behind would silence the next write."""
    try:
        for name, value in confs.items():
            session.conf.set(name, value)
        yield
    finally:
        for name in confs:
            session.conf.unset(name)


def checkpointed(session: SparkSession, frame: DataFrame) -> DataFrame:
    """Computed now and once; kept while the result is referenced.

    PySpark binds the result to the first session of the thread, which may be another one than the frame's.
    """
    kept = frame.localCheckpoint()
    vars(kept)["_session"] = session
    vars(vars(kept)["_plan"])["_spark_session"] = session
    return kept


@contextmanager
def tagged(session: SparkSession, tag: str) -> Iterator[None]:
    """Operations inside can be cancelled by `session.interruptTag(tag)`."""
    session.addTag(tag)
    try:
        yield
    finally:
        session.removeTag(tag)
