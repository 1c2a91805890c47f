"""The tree of errors: each says what was found, what was expected, what to do, and whether a retry can help.

CdcError
├── UsageError              the caller asked for something that does not exist
├── SettingsError           pipeline.yml is wrong; the person who wrote it acts
├── SetupError              a part of the installation is missing or too old
├── SourceError             the source refuses, or is not what it was
│   ├── SourceGap           the source can no longer serve the next offset: a new snapshot is needed
│   ├── SourceChanged       another system identifier, timeline or table oid
│   │   └── TableStale      the stream does not tell this table whole: only a new snapshot mends it
│   ├── SourceBusy          somebody else reads the slot; the same call may succeed when they have left
│   └── SourceAway          the connection to the source broke; the same call is safe to repeat
├── DecodeError             bytes of the change stream that do not follow its protocol
├── StoreAway               the metadata store does not answer; the same call is safe to repeat
├── ObjectStoreAway         the object store does not answer; the same call is safe to repeat
├── RegistryError           the metadata store contradicts what is to be written
│   ├── StreamMoved         the stream is not what it was when it was opened: open it again
│   ├── SliceFork           same offset range registered with another hash
│   └── StaleEpoch          a newer owner took over; this one must stop
├── LeaseBusy               somebody else works on the table: leave, it is no failure
├── TablePauses             the table failed, and its next try comes later: leave, it is no failure
├── SliceDamaged            a slice file is not the one that was registered
├── FenceMismatch           lake and registry disagree about what was applied
├── LakeError               the lake refused or lost an answer
│   └── LakeAway            nothing answers there; the same call is safe to repeat
├── SnapshotError           a snapshot cannot go on as it is
├── ObjectExists            put-if-absent found another object under the key
└── ObjectMissing           no object under the key
"""

import re
from typing import ClassVar

HIDDEN = "***"
_IN_URL = re.compile(r"(?<=://)([^\s:/@]*):\S*@")
_NAMED = re.compile(
    r"""(?i)\b((?:\w*_)?(?:password|passwd|passphrase|secret|secret_key|secret_access_key|token)['"]?\s*[=:]\s*)"""
    r"""(?!\.\.\.)('[^']*'|"[^"]*"|[^\s;&,'"]+)"""
)


def redacted(text: str) -> str:
    """`text` without passwords of URLs and without what stands behind `password=`, `token:` and the like."""
    return _NAMED.sub(rf"\1{HIDDEN}", _IN_URL.sub(rf"\1:{HIDDEN}@", text))


class CdcError(Exception):
    """Root of all errors that this project raises on purpose.

    `found`, `expected` and `remedy` are whole phrases; the message joins them. None of them shows a secret.
    `retryable` tells the worker and Airflow whether the same call may succeed later without anybody's help.
    `outage`: a server is away, whatever table was worked on; no table is to blame.
    """

    retryable: ClassVar[bool] = False
    outage: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, found: str, *, expected: str = "", remedy: str = "") -> None:
        self.found = redacted(found)
        self.expected = redacted(expected)
        self.remedy = redacted(remedy)
        parts = [self.found]
        if expected:
            parts.append(f"expected {self.expected}")
        if remedy:
            parts.append(self.remedy)
        super().__init__("; ".join(parts))


class UsageError(CdcError):
    """Exit code 2, like every wrong word on the command line."""

    exit_code: ClassVar[int] = 2


class SettingsError(CdcError):
    """Raised before anything is touched."""

    exit_code: ClassVar[int] = 2


class SetupError(CdcError):
    pass


class SourceError(CdcError):
    pass


class SourceGap(SourceError):
    pass


class SourceChanged(SourceError):
    pass


class TableStale(SourceChanged):
    """Of one table, called `table`: its neighbours in the stream go on."""

    def __init__(self, found: str, *, table: object = "", expected: str = "", remedy: str = "") -> None:
        super().__init__(found, expected=expected, remedy=remedy or f"run cdc snapshot {table}: it begins again then")
        self.table = table


class SourceBusy(SourceError):
    """A reader whose network broke counts as one until the server has noticed."""

    retryable: ClassVar[bool] = True


class SourceAway(SourceError):
    """The connection broke; the next try may find the server again."""

    retryable: ClassVar[bool] = True
    outage: ClassVar[bool] = True


class DecodeError(CdcError):
    pass


class StoreAway(CdcError):
    """The connection to the metadata store broke; whether the transaction was committed is unknown."""

    retryable: ClassVar[bool] = True
    outage: ClassVar[bool] = True


class ObjectStoreAway(CdcError):
    """The object store failed for longer than a call waits; whether an object was put is unknown."""

    retryable: ClassVar[bool] = True
    outage: ClassVar[bool] = True


class RegistryError(CdcError):
    pass


class StreamMoved(RegistryError):
    """Nothing of this cut was registered: whoever reads the stream opens it again, and finds what changed."""

    retryable: ClassVar[bool] = True


class SliceFork(RegistryError):
    pass


class StaleEpoch(RegistryError):
    """Whoever gets this one stops at once: a newer owner is at work and nothing is lost."""


class LeaseBusy(CdcError):
    """A reason to leave as success, never a failure."""

    exit_code: ClassVar[int] = 4


class TablePauses(CdcError):
    """A reason to leave as success: the failure that it comes from was reported when it happened."""

    exit_code: ClassVar[int] = 4


class SliceDamaged(CdcError):
    pass


class FenceMismatch(CdcError):
    pass


class LakeError(CdcError):
    retryable: ClassVar[bool] = True


class LakeAway(LakeError):
    """Whether the lake has the commit is unknown; the fence tells."""

    outage: ClassVar[bool] = True


class SnapshotError(CdcError):
    pass


class ObjectExists(CdcError):
    pass


class ObjectMissing(CdcError):
    pass
