"""Spark Connect sessions: tuned for small merges and isolated from each other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import cast

import structlog
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect import proto
from pyspark.sql.connect.client import SparkConnectClient
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as RemoteSession

from cdc_pipeline.lake.spark_channel import PARAMETERS, SparkChannel, check_encrypted
from cdc_pipeline.lake.spark_errors import UNREACHABLE, has_status, spark_calls

log = structlog.get_logger()

OpenSession = Callable[[], SparkSession]
CancelSession = Callable[[str, str], object]
"""Takes a session's name and the tag of a claim; see `cancel`."""
MOST_GROUP_ROWS = 1_000_000
"""Of a row group, else of 128 MiB: a claim of few rows reads the ids of whole row groups, however large a file is."""
# Spark writes timestamps as INT96 by default. Other readers use nanoseconds, which overflow outside 1677 to 2262.
# Without the threshold the server keeps each larger table that it was sent until the session ends.
# Several are Spark's defaults: a server of one's own may have others, and with them a claim would read a damaged file
# as a shorter one, bytes as text, a time as another moment, or a table as it was before. Delta would refuse to read a
# version that is as old as the retention of files, although it was the latest until a moment ago.
TUNING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
    "parquet.block.row.count.limit": str(MOST_GROUP_ROWS),
    "spark.sql.session.localRelationCacheThreshold": str(64 << 20),
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.stalenessLimit": "0",
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    "spark.databricks.delta.commit.idempotencyCheck.enabled": "true",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.databricks.delta.optimize.maxFileSize": str(128 << 20),
    "spark.databricks.delta.optimize.minFileSize": str(16 << 20),
}
_GIVEN_TO_TABLES = "spark.databricks.delta.properties.defaults."

_LONGEST_PAUSE_MILLISECONDS = 2_000
_MOST_TRIES = 45
"""About one and a half minutes. A restarted server waits at most the longest pause for the client."""
_FEW_TRIES = 3
_USER = "cdc"


def claim_tag(claim_id: str) -> str:
    """Returns the tag under which every operation of a claim runs."""
    return f"claim-{claim_id}"


def session_name(session: SparkSession) -> str:
    """Returns the id by which the server and `cancel` know the session."""
    return str(vars(session.client)["_session_id"])


def cancel(url: str, session: str, tag: str) -> tuple[str, ...]:
    """Interrupts the operations under `tag` in that session and ends the session. Returns their ids.

    The session's own client then gets SessionLost. If the session is already gone, the server creates it for this call
    only.
    """
    with spark_calls(f"cancelling {tag} in the session {session}"):
        client = client_of(url, session)
        try:
            client.set_retry_policies([DefaultPolicy(max_retries=_FEW_TRIES)])
            found = client.interrupt_tag(tag)
            with suppress(PySparkException):  # the server raises an error if something still runs, but ends the session
                client.release_session()
        finally:
            client.close()
    log.warning("left behind and cancelled", session=session, tag=tag, operations=found)
    return tuple(found or ())


def _with(url: str, *parameters: str) -> str:
    """Adds `user_id` and `parameters` to the URL, so that another process can cancel the session."""
    address, _, given = url.partition(PARAMETERS)
    return f"{address.rstrip('/')}{PARAMETERS}{';'.join(filter(None, (given, f'user_id={_USER}', *parameters)))}"


def client_of(url: str, session: str) -> SparkConnectClient:
    """Returns another client of an open session. The caller closes it."""
    check_encrypted(url)
    return SparkConnectClient(SparkChannel(_with(url, f"session_id={session}")))


def untuned_session(url: str) -> SparkSession:
    """Opens a session with PySpark's default confs."""
    return cast("SparkSession", RemoteSession.builder.channelBuilder(SparkChannel(_with(url))).create())


def connect(url: str, *, first: Callable[[], None] | None = None) -> SparkSession:
    """Opens a session of its own, so that no other session sees its confs. Calls `first` before it connects.

    Raises LakeError if the server does not answer.
    """
    check_encrypted(url)
    if first is not None:
        first()
    with spark_calls(f"connecting to Spark at {url.partition(PARAMETERS)[0]}"):
        session = untuned_session(url)
        try:
            policy = DefaultPolicy(max_retries=_MOST_TRIES, max_backoff=_LONGEST_PAUSE_MILLISECONDS)
            session.client.set_retry_policies([policy])
            tune(session)
        except BaseException:
            leave_lost(session)
            raise
    return session


def tune(session: SparkSession) -> None:
    """Sets the confs of TUNING, and unsets those by which the server gives properties to each table that Spark creates.

    With some of these only Delta's writer would maintain the table.
    """
    set_confs(session, TUNING)
    given = session.client.config(
        proto.ConfigRequest.Operation(get_all=proto.ConfigRequest.GetAll(prefix=_GIVEN_TO_TABLES))
    ).pairs
    unset_confs(session, [f"{_GIVEN_TO_TABLES}{name}" for name, _ in given])


def set_confs(session: SparkSession, confs: Mapping[str, str]) -> None:
    """Sets all confs in one call of the server."""
    pairs = [proto.KeyValue(key=name, value=value) for name, value in confs.items()]
    session.client.config(proto.ConfigRequest.Operation(set=proto.ConfigRequest.Set(pairs=pairs)))


def unset_confs(session: SparkSession, names: Sequence[str]) -> None:
    session.client.config(proto.ConfigRequest.Operation(unset=proto.ConfigRequest.Unset(keys=names)))


def leave_lost(session: SparkSession) -> None:
    """Closes a session on the client's side only: the server no longer knows it, or something may have stayed in it.

    Otherwise PySpark would use it as the default session for ever.
    """
    session.client.close()
    session.stop()


def end_session(session: SparkSession) -> None:
    """Ends the session. Gives up after a few seconds if the server does not answer."""
    session.client.set_retry_policies([DefaultPolicy(max_retries=_FEW_TRIES)])
    session.stop()


@contextmanager
def configured(session: SparkSession, confs: dict[str, str]) -> Iterator[None]:
    """Sets the confs, and always unsets them at the end.

    A transaction version or userMetadata that stays in the session would change the next write, or suppress it.
    """
    with cleaned_up(session, partial(unset_confs, session, list(confs))):
        set_confs(session, confs)
        yield


@contextmanager
def cleaned_up(session: SparkSession, clean: Callable[[], None]) -> Iterator[None]:
    """Calls `clean` at the end. If the server no longer answers, gives up soon, and keeps the error that says so.

    A session in which `clean` failed is closed, because what stays in it would change other writes.
    """
    is_away = False
    try:
        yield
    except PySparkException as error:
        is_away = has_status(error, UNREACHABLE)
        raise
    finally:
        with _few_tries(session) if is_away else nullcontext():
            _clean_or_leave(session, clean)


def _clean_or_leave(session: SparkSession, clean: Callable[[], None]) -> None:
    if session.client.is_closed:  # by the clean-up of a block inside this one: its error is the one to see
        return
    try:
        clean()
    except BaseException:
        leave_lost(session)
        raise


@contextmanager
def _few_tries(session: SparkSession) -> Iterator[None]:
    policies = session.client.get_retry_policies()
    session.client.set_retry_policies([DefaultPolicy(max_retries=_FEW_TRIES)])
    try:
        with suppress(PySparkException):
            yield
    finally:
        session.client.set_retry_policies(policies)


def checkpointed(session: SparkSession, frame: DataFrame) -> DataFrame:
    """Computes the frame now and once. Spark keeps the result while it is referenced.

    PySpark binds the result to the first session of the thread, which may be another one than the frame's.
    """
    kept = frame.localCheckpoint()
    vars(kept)["_session"] = session
    vars(vars(kept)["_plan"])["_spark_session"] = session
    return kept


@contextmanager
def tagged(session: SparkSession, tag: str) -> Iterator[None]:
    """Tags the operations inside, so that `session.interruptTag(tag)` can cancel them."""
    session.addTag(tag)
    try:
        yield
    finally:
        session.removeTag(tag)
