"""Calls to AWS's streams: repeated while that can help; a failure becomes one of the pipeline's errors."""

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3.session
import botocore.session
import structlog
from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from cdc_pipeline.errors import CdcError, SettingsError, SourceAway, SourceError, StreamDenied, StreamMoved
from cdc_pipeline.settings.aws import AwsStreams

log = structlog.get_logger()

Answer = Mapping[str, Any]
CONNECT_SECONDS, ANSWER_SECONDS = 5, 30
TIMEOUT = timedelta(seconds=30)
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0
_SERVER_ERROR = 500
_THROTTLED = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "LimitExceededException",
        "ThrottlingException",
        "Throttling",
        "RequestLimitExceeded",
        "KMSThrottlingException",
    }
)
GONE = frozenset({"ResourceNotFoundException", "ResourceInUseException"})
"""There is no such stream, or it is being created or deleted."""
_DENIED = "AccessDeniedException"
_BROKEN_CONNECTIONS = (exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError)
_NO_CREDENTIALS = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
)
_STILL_EXPIRED = "credentials are still expired"
"""In the words of AWS's client."""
_REMEDY = "set AWS's variables in the environment, or profile or credentials_file of source; never write keys here"


class AnswerOfOthers(exceptions.HTTPClientError):
    """Status 200 and a content that is not AWS's: a page of a proxy, nothing, or an answer that was cut off."""

    fmt = "the answer is not AWS's, but perhaps a proxy's: it has no {key}"


class StreamCalls:
    """Waits between tries are random and grow. A call fails when it has been repeated for `timeout`."""

    def __init__(self, timeout: timedelta = TIMEOUT) -> None:
        self._timeout = timeout

    def __call__(self, doing: str, call: Callable[[], Answer], key: str) -> Answer:
        """Returns an answer that has `key`, as each of AWS's has.

        Raises ClientError for what the caller knows better, SourceAway, or an error that somebody has to act on.
        """
        retrying = Retrying(
            retry=retry_if_exception(may_pass),
            wait=wait_random_exponential(multiplier=_FIRST_PAUSE_SECONDS, max=_LONGEST_PAUSE_SECONDS),
            stop=stop_after_delay(self._timeout),
            before_sleep=_note_throttling,
            reraise=True,
        )
        try:
            return retrying(_checked, call, key)
        except ClientError as error:
            if not may_pass(error):
                raise
            raise _away(doing, str(error)) from error
        except BotoCoreError as error:
            raise _failure(doing, error) from error
        except RuntimeError as error:
            if not may_pass(error):
                raise
            raise SourceAway(
                f"{doing} failed for {TIMEOUT}: {error}",
                expected="credentials that are valid now",
                remedy="correct what refreshes the credentials, such as the machine's role, or this machine's clock",
            ) from error


def _checked(call: Callable[[], Answer], key: str) -> Answer:
    answer = call()
    if key not in answer:
        raise AnswerOfOthers(key=key)
    return answer


def _failure(doing: str, error: BotoCoreError) -> CdcError:
    if may_pass(error):
        return _away(doing, str(error))
    if isinstance(error, _NO_CREDENTIALS):
        return SettingsError(
            f"{doing} failed: {error}", expected="credentials that may read the stream", remedy=_REMEDY
        )
    return SettingsError(
        f"{doing} failed: {error}", remedy="correct region, endpoint or profile of source in pipeline.yml"
    )


def opened_iterator(
    calls: StreamCalls, doing: str, call: Callable[[], Answer], *, sequence: str, refused_places: Collection[str]
) -> str | None:
    """Returns the iterator of the answer; None if AWS refuses the record `sequence` with one of these codes."""
    try:
        answer = calls(doing, call, "ShardIterator")
    except ClientError as error:
        if sequence and code_of(error) in refused_places:
            return None
        raise refusal(doing, error) from error
    return str(answer["ShardIterator"])


def refusal(doing: str, error: ClientError) -> CdcError:
    """Returns the error for a call that AWS refuses. A stream or shard that is gone is found by the next survey."""
    found = f"{doing} failed: {code_of(error)} {error.response.get('Error', {}).get('Message', '')}".strip()
    if code_of(error) in GONE:
        return StreamMoved(
            found,
            expected="the stream and the shards that were there when the consumer began",
            remedy="the consumer opens the stream again, and finds out which tables can still be read",
        )
    expected = "credentials that may list, describe and read the stream"
    if code_of(error) == _DENIED:
        return StreamDenied(found, expected=expected, remedy=f"grant their owner the missing rights, or {_REMEDY}")
    return SourceError(found, expected=expected, remedy=f"grant their owner the missing rights, or {_REMEDY}")


def may_pass(error: BaseException) -> bool:
    """Returns whether the same call may succeed later."""
    if isinstance(error, ClientError):
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return code_of(error) in _THROTTLED or status >= _SERVER_ERROR
    # AWS's client has no class of its own for credentials that are still expired after it refreshed them.
    return isinstance(error, _BROKEN_CONNECTIONS) or (isinstance(error, RuntimeError) and _STILL_EXPIRED in str(error))


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def connected(service: str, settings: AwsStreams, folder: Path) -> Any:
    """Returns boto3's client of a service. Connects to nothing. Raises SettingsError for settings that it refuses.

    `folder`: that of pipeline.yml, where paths begin.
    """
    try:
        inner = botocore.session.Session(profile=settings.profile)
        if settings.credentials_file is not None:
            inner.set_config_variable("credentials_file", str(folder / settings.credentials_file))
        session = boto3.session.Session(botocore_session=inner, region_name=settings.region)
        if session.get_credentials() is None:
            raise SettingsError(
                f"there are no credentials for {service}",
                expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, a file, or the machine's role",
                remedy=_REMEDY,
            )
        # Each call is tried once, because `StreamCalls` repeats it.
        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=ANSWER_SECONDS,
            retries={"mode": "standard", "total_max_attempts": 1},
        )
        client_of: Any = session.client  # its type knows the services that have a package of types
        client: Any = client_of(service, endpoint_url=settings.endpoint, config=config)
    except (BotoCoreError, ValueError) as error:
        raise SettingsError(
            f"AWS's client refuses its settings: {error}",
            expected="a region, and an endpoint that is a URL if there is one",
            remedy="correct region, endpoint, profile or credentials_file of source in pipeline.yml",
        ) from error
    return client


def _note_throttling(state: RetryCallState) -> None:
    error = None if state.outcome is None else state.outcome.exception()
    if state.attempt_number == 1 and isinstance(error, ClientError):
        log.info("call to AWS throttled", found=code_of(error))


def _away(doing: str, found: str) -> SourceAway:
    return SourceAway(
        f"{doing} failed for {TIMEOUT}: {found}",
        remedy="the same call is safe to repeat; if a shard is throttled, give its other readers fewer reads",
    )
