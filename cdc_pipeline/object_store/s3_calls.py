"""Calls to S3: repeated while that can help; a failure becomes one of the pipeline's errors."""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from botocore import exceptions
from botocore.exceptions import BotoCoreError, ClientError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from cdc_pipeline.errors import CdcError, ObjectExists, ObjectMissing, ObjectStoreAway, SettingsError

Answer = TypeVar("Answer")
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 8
SERVER_ERROR = 500
NO_ROOM = 507
NEVER_WILL = frozenset({501, 505, NO_ROOM})
"""Server errors that do not pass: the server cannot do it, or has no room."""
BUSY_STATUSES = frozenset({408, 409, 425, 429})
"""409: a conditional write met another one whose outcome is not decided yet."""
BUSY_CODES = frozenset(
    {
        "RequestTimeout",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "KMS.ThrottlingException",
        "RequestTimeTooSkewed",
    }
)
BROKEN_CONNECTIONS = (exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError)
MISSING = frozenset({"NoSuchKey", "NoSuchUpload", "404"})
TAKEN = frozenset({"PreconditionFailed", "412"})
NO_BUCKET = frozenset({"NoSuchBucket", "InvalidBucketName"})
ELSEWHERE = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
)
DENIED = frozenset({401, 403})
OLD_TOKENS = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "400"})
"""They come with status 400; the answer to a HEAD has no other code than that."""

RESTART = "restart the processes (`cdc down`, `cdc up`)"
"""A running process never reads keys from variables or a file again."""
STILL_EXPIRED = "credentials are still expired"
"""In the words of AWS's client."""


class S3Calls:
    """Waits between tries are random and grow. A call fails when it has been repeated for `timeout`."""

    def __init__(self, url: str, timeout: timedelta) -> None:
        self._url = url
        self._timeout = timeout

    def __call__(self, doing: str, call: Callable[[], Answer]) -> Answer:
        """Raises ObjectMissing, ObjectExists, ObjectStoreAway (retryable), or SettingsError if somebody must act."""
        retrying = Retrying(
            retry=retry_if_exception(_may_pass),
            wait=wait_random_exponential(multiplier=FIRST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS),
            stop=stop_after_delay(self._timeout),
            reraise=True,
        )
        try:
            return retrying(call)
        except ClientError as error:
            raise self._worded(doing, error) from error
        except BotoCoreError as error:
            raise self._unanswered(doing, error) from error
        except RuntimeError as error:
            if not _is_expired(error):
                raise
            raise self._without_credentials(doing, error) from error

    def _worded(self, doing: str, error: ClientError) -> CdcError:
        code, said = _code(error), error.response.get("Error", {}).get("Message", "")
        found = f"{doing} under {self._url} failed: {code} {said}".strip()
        if code in MISSING:
            return ObjectMissing(f"{doing}: no such object under {self._url}", expected="one that was written earlier")
        if code in TAKEN:
            return ObjectExists(f"{doing}: the object exists under {self._url}", expected="no object")
        if _may_pass(error):
            return ObjectStoreAway(found, expected="an answer", remedy="the same call is safe to repeat")
        if _status(error) == NO_ROOM:
            return ObjectStoreAway(
                found, expected="free space", remedy="free space there; the same call is safe to repeat"
            )
        expected, remedy = _mend(code, _status(error))
        return SettingsError(found, expected=expected, remedy=remedy)

    def _unanswered(self, doing: str, error: BotoCoreError) -> CdcError:
        if isinstance(error, exceptions.CredentialRetrievalError):
            return self._without_credentials(doing, error)
        found = f"{doing} under {self._url} failed: {error}"
        if _may_pass(error):
            return ObjectStoreAway(found, expected="an answer", remedy="the same call is safe to repeat")
        return SettingsError(
            found, remedy="correct object_store in pipeline.yml, or AWS's variables in the environment"
        )

    def _without_credentials(self, doing: str, error: Exception) -> ObjectStoreAway:
        return ObjectStoreAway(
            f"{doing} under {self._url} failed: {error}",
            expected="credentials that are valid now",
            remedy="correct what refreshes the credentials, such as the machine's role, or this machine's clock",
        )


def _mend(code: str, status: int) -> tuple[str, str]:
    """What was expected, and what to do."""
    if code in NO_BUCKET:
        return (
            "a bucket that exists",
            "create it, or correct its name: in pipeline.yml (lake, source.path) or in --from",
        )
    if code in ELSEWHERE:
        return "the region of the bucket", "set object_store.region in pipeline.yml"
    if code in OLD_TOKENS:
        return (
            "a session token that is still valid",
            f"get new credentials, set AWS's variables in the environment, and {RESTART}",
        )
    if status in DENIED:
        expected = (
            "credentials that may list, get, put and delete there; without s3:ListBucket a missing object is refused"
        )
        return expected, f"grant the missing rights, or correct AWS's variables in the environment, and {RESTART}"
    return "a store that speaks S3 with conditional writes", "move the lake to such a store (docs/how-to/lake-on-s3.md)"


def _may_pass(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, ClientError):
        status = _status(error)
        busy = status in BUSY_STATUSES or _code(error) in BUSY_CODES
        return busy or (status >= SERVER_ERROR and status not in NEVER_WILL)
    return isinstance(error, (*BROKEN_CONNECTIONS, exceptions.CredentialRetrievalError)) or _is_expired(error)


def _is_expired(error: BaseException) -> bool:
    """Whether credentials are still expired after AWS's client refreshed them. It has no class of its own for that."""
    return isinstance(error, RuntimeError) and STILL_EXPIRED in str(error)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
