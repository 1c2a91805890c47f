"""The tree of errors. Each says what was found, what was expected, what to do, and whether a retry can help.

CdcError
├── UsageError              the call names something that does not exist
├── SettingsError           pipeline.yml or a CDC_ variable is wrong; correct it
├── SetupError              a part of the installation is missing or too old
├── SourceError             the source refuses a call, or has changed
│   ├── SourceGap           the source no longer has the next offset: a new snapshot is needed
│   ├── SourceChanged       another system identifier, timeline or table oid
│   │   └── TableStale      the stream lacks changes of this table: a new snapshot is needed
│   ├── PartitionFailed     one stream partition cannot be read; the others go on
│   ├── StreamDenied        the credentials may not read one stream; the tables of others go on
│   ├── SourceBusy          another session has the slot or a lock; the same call may succeed later
│   └── SourceAway          the connection to the source broke; the same call is safe to repeat
├── DecodeError             bytes of the change stream that do not follow its protocol
├── StoreAway               the metadata store does not answer; the same call is safe to repeat
├── ObjectStoreAway         the object store does not answer; the same call is safe to repeat
├── RegistryError           the metadata store contradicts what is to be registered
│   ├── StreamMoved         the stream has changed since it was opened: open it again
│   ├── SliceFork           same offset range registered with another hash
│   └── StaleEpoch          a newer owner took over; this one must stop
├── LeaseBusy               another process works on the table; not a failure
├── NoWorker                no resident worker takes slice requests
├── TablePauses             the table failed and its next try is later; not a failure
├── SliceDamaged            a slice file differs from the one that was registered
├── FenceMismatch           lake and metadata store disagree about what was applied
├── LakeError               the lake refused a call, or its answer was lost
│   └── LakeAway            the lake does not answer; the same call is safe to repeat
├── SnapshotError           a snapshot cannot continue
├── ObjectExists            put-if-absent found another object under the key
└── ObjectMissing           no object under the key
"""

import errno
import re
from typing import ClassVar, Self

HIDDEN = "***"
_IN_URL = re.compile(r"(?<=://)([^\s:/@]*):\S*@")
_NAMED = re.compile(
    r"""(?i)\b((?:\w*_)?(?:password|passwd|passphrase|secret|secret_key|secret_access_key|token)['"]?\s*[=:]\s*)"""
    r"""(?!\.\.\.)('[^']*'|"[^"]*"|[^\s;&,'"]+)"""
)


def storable(text: str) -> str:
    """Returns `text` as every store and terminal takes it: with escapes in place of NUL and of lone surrogates."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def redacted(text: str) -> str:
    """Returns `text`, storable, without the passwords of URLs and the values after `password=`, `token:` and the like.

    Every error's text and every line of the log passes here; they may quote values of rows.
    """
    return _NAMED.sub(rf"\1{HIDDEN}", _IN_URL.sub(rf"\1:{HIDDEN}@", storable(text)))


_DAMAGE = ("Corrupt ", "Unexpected end of stream", "Couldn't deserialize thrift", "ZSTD decompression failed")
"""Begin the texts of Arrow's errors for a damaged Parquet file."""


class CdcError(Exception):
    """Root of all errors that this project raises on purpose.

    `found`, `expected` and `remedy` are whole phrases; the message joins them. None of them shows a secret.
    `retryable`: the same call may succeed later although nobody does anything; the worker and Airflow try again.
    `outage`: a server does not answer. The failure does not count against the table that was worked on.
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
    """Exit code 2, as for every mistake on the command line."""

    exit_code: ClassVar[int] = 2


class SettingsError(CdcError):
    """Raised before anything is changed."""

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
    """Concerns only the table `table`; the other tables of the stream continue."""

    def __init__(self, found: str, *, table: object = "", expected: str = "", remedy: str = "") -> None:
        super().__init__(found, expected=expected, remedy=remedy or f"run cdc snapshot {table}: it begins again there")
        self.table = table

    @classmethod
    def by(cls, error: SourceError, table: object) -> Self:
        """Returns the error of a registered table that cannot be read as it is now."""
        return cls(
            error.found, table=table, expected=error.expected, remedy=f"{error.remedy}, then cdc snapshot {table}"
        )


class PartitionFailed(SourceError):
    """Concerns only one stream partition; the others of the stream continue."""

    def __init__(self, found: str, *, stream_partition: int, expected: str = "", remedy: str = "") -> None:
        super().__init__(found, expected=expected, remedy=remedy)
        self.stream_partition = stream_partition


class StreamDenied(SourceError):
    """Concerns only the tables of one stream of AWS."""


class SourceBusy(SourceError):
    """Another session has what is needed: the slot, as a reader whose connection broke, or the lock of a table."""

    retryable: ClassVar[bool] = True


class SourceAway(SourceError):
    """The connection to the source broke; the next try may reach the server again."""

    retryable: ClassVar[bool] = True
    outage: ClassVar[bool] = True


class DecodeError(CdcError):
    pass


class StoreAway(CdcError):
    """The connection to the metadata store broke; whether the transaction was committed is unknown."""

    retryable: ClassVar[bool] = True
    outage: ClassVar[bool] = True


class ObjectStoreAway(CdcError):
    """The object store failed for longer than a call is repeated; whether an object was put is unknown."""

    retryable: ClassVar[bool] = True
    outage: ClassVar[bool] = True


class RegistryError(CdcError):
    pass


class StreamMoved(RegistryError):
    """The consumer opens the stream again, at what is registered, and finds what changed.

    Nothing of the present cut is registered, unless it was raised once the whole cut was (`ChangeStream.confirm`).
    """

    retryable: ClassVar[bool] = True


class SliceFork(RegistryError):
    pass


class StaleEpoch(RegistryError):
    """The caller must stop at once. A newer owner is at work; nothing is lost."""


class LeaseBusy(CdcError):
    """Not a failure: a run of Airflow ends as a success, `cdc` with exit code 4."""

    exit_code: ClassVar[int] = 4


class NoWorker(CdcError):
    """Slices wait for a resident worker; nothing is lost, and a later run finds them."""


class TablePauses(CdcError):
    """Not a failure, as for LeaseBusy: the failure behind the pause was reported when it happened."""

    exit_code: ClassVar[int] = 4


class SliceDamaged(CdcError):
    pass


class FenceMismatch(CdcError):
    pass


class LakeError(CdcError):
    retryable: ClassVar[bool] = True

    @classmethod
    def unforeseen(cls, error: Exception) -> Self:
        """Returns the error of a table for one that nobody raised on purpose; its traceback is to be logged."""
        return cls(
            f"{type(error).__name__}: {error}",
            expected="no error but those that are foreseen",
            remedy="the traceback is in the log; what was applied stays, and the same call is safe to repeat",
        )


class LakeAway(LakeError):
    """Whether the lake has the commit is unknown until the fence is read."""

    outage: ClassVar[bool] = True


class SnapshotError(CdcError):
    pass


class ObjectExists(CdcError):
    pass


class ObjectMissing(CdcError):
    pass


def is_outage(error: Exception) -> bool:
    """Returns whether a server or a disk failed. A damaged Parquet file is no outage.

    Arrow raises an OSError without a number for damaged pages, and for a server of S3 too; only their texts differ.
    """
    if isinstance(error, CdcError):
        return error.outage
    return isinstance(error, OSError) and (error.errno is not None or not str(error).startswith(_DAMAGE))


def has_no_room(error: BaseException | None) -> bool:
    """Returns whether the system refused to write more: the disk or the quota is full, or the file is too long."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def damaged_file(found: str) -> LakeError:
    """Returns the error of a table of which a file is missing or damaged. The commits of its log are whole."""
    return LakeError(
        found,
        expected="whole files of the lake",
        remedy="bring the file back from a copy of the lake, or run cdc snapshot on the table",
    )


def unread_file(found: str) -> LakeError:
    """Returns the error of a table of which a file could not be read, for whatever reason."""
    return LakeError(
        found,
        expected="whole files of the lake, and a store that answers",
        remedy="run the same again if the store did not answer; otherwise bring the file back from a copy of the lake,"
        " or run cdc snapshot on the table",
    )
