"""A prefix of an S3 bucket as an object store."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

import pyarrow.fs
from botocore.credentials import ReadOnlyCredentials

from cdc_pipeline.errors import CdcError, ObjectExists, ObjectMissing, ObjectStoreAway, SettingsError
from cdc_pipeline.object_store.protocol import ObjectInfo, object_exists
from cdc_pipeline.object_store.proven import refuse_unless_one_wins
from cdc_pipeline.object_store.s3_calls import S3Calls
from cdc_pipeline.object_store.s3_location import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    S3Location,
    client_options,
    credentials_of,
    session_of,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, ListObjectsV2OutputTypeDef, ObjectIdentifierTypeDef

TIMEOUT = timedelta(seconds=60)
PART_BYTES = 8 << 20
MOST_PARTS = 10_000
MOST_KEYS = 1_000
BLOCK_BYTES = 1 << 20
READING_ATTEMPTS = 10


class S3ObjectStore:
    """Put-if-absent uses S3's conditional write: of all writers of a key one wins, and the others get status 412.

    A writer whose answer was lost finds its own object at the next try, so after each 412 the object is read back and
    compared. Larger files are uploaded in parts, of which memory holds one; the condition applies when they are joined.
    A store that is not proven runs a race before its first put, and refuses a server that lets two writers win.
    """

    def __init__(
        self,
        location: S3Location,
        *,
        timeout: timedelta = TIMEOUT,
        part_bytes: int = PART_BYTES,
        page_keys: int = 1_000,
        is_proven: bool = False,
    ) -> None:
        self._calls = S3Calls(f"s3://{location.path}", timeout)
        self._session, self._location = self._calls("finding the server", lambda: session_of(location))
        self._credentials()
        options = client_options(self._location, self._session)
        self._client = self._calls("opening the client", lambda: self._session.client("s3", **options))
        self._part_bytes = part_bytes
        self._page_keys = page_keys
        self._is_proven, self._proof = is_proven, Lock()

    @property
    def url(self) -> str:
        return f"s3://{self._location.path}"

    def prove(self) -> None:
        with self._proof:
            if not self._is_proven:
                refuse_unless_one_wins(S3ObjectStore(self._location, is_proven=True))
                self._is_proven = True

    def put_if_absent(self, key: str, content: bytes) -> None:
        self.prove()
        with io.BytesIO(content) as source:
            self._settled(key, source, lambda: self._put(key, content))

    def put_file_if_absent(self, key: str, source: Path) -> None:
        self.prove()
        size_bytes = source.stat().st_size
        with source.open("rb") as file:
            if size_bytes <= self._part_bytes:
                self._settled(key, file, lambda: self._put(key, file.read()))
            else:
                part_bytes = max(self._part_bytes, -(-size_bytes // MOST_PARTS))
                self._settled(key, file, lambda: self._put_parts(key, file, part_bytes))

    def overwrite(self, key: str, content: bytes) -> None:
        self.prove()
        self._calls(
            f"overwriting {key}",
            lambda: self._client.put_object(Bucket=self._location.bucket, Key=self._key(key), Body=content),
        )

    def get(self, key: str) -> bytes:
        def read() -> bytes:
            with closing(self._client.get_object(Bucket=self._location.bucket, Key=self._key(key))["Body"]) as body:
                return body.read()

        return self._calls(f"getting {key}", read)

    def copy_to(self, key: str, sink: BinaryIO) -> int:
        def copy() -> int:
            sink.seek(0)
            sink.truncate()
            answer = self._client.get_object(Bucket=self._location.bucket, Key=self._key(key))
            with closing(answer["Body"]) as body:
                sink.writelines(body.iter_chunks(BLOCK_BYTES))
            return _microseconds(answer["LastModified"])

        return self._calls(f"copying {key}", copy)

    def head(self, key: str) -> ObjectInfo:
        answer = self._calls(
            f"looking for {key}", lambda: self._client.head_object(Bucket=self._location.bucket, Key=self._key(key))
        )
        return ObjectInfo(
            key=key,
            size_bytes=answer["ContentLength"],
            written=answer["ETag"],
            written_at=_time_of(answer),
        )

    def list_prefix(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Leaves out the empty objects with which Hadoop marks folders. The pipeline's keys never end with a slash."""
        root = len(self._key(""))
        below = self._key(f"{prefix}/" if prefix else "")
        page = self._page(below, StartAfter=max(below, self._key(after)))
        while True:
            contents = page.get("Contents", [])
            for found in contents:
                if not found["Key"].endswith("/"):
                    yield ObjectInfo(
                        key=found["Key"][root:],
                        size_bytes=found["Size"],
                        written=found["ETag"],
                        written_at=_time_of(found),
                    )
            if not page["IsTruncated"]:
                return
            page = self._page(below, ContinuationToken=page["NextContinuationToken"])

    def unfinished(self, prefix: str, before: datetime | None = None) -> Iterator[ObjectInfo]:
        """Yields nothing: parts of killed puts have no keys, and the bucket's lifecycle rule removes them."""
        del prefix, before
        return iter(())

    def delete(self, key: str) -> None:
        self._calls(
            f"deleting {key}", lambda: self._client.delete_object(Bucket=self._location.bucket, Key=self._key(key))
        )

    def delete_all(self, keys: Sequence[str]) -> None:
        """A thousand objects per call. Those that the server refuses are deleted one by one, to get the error."""
        for first in range(0, len(keys), MOST_KEYS):
            for key in self._delete_at_once(keys[first : first + MOST_KEYS]):
                self.delete(key)

    def _delete_at_once(self, keys: Sequence[str]) -> Sequence[str]:
        """Deletes objects in one call and returns the keys that are left: all, if the server lacks this call."""
        named: list[ObjectIdentifierTypeDef] = [{"Key": self._key(key)} for key in keys]
        try:
            answer = self._calls(
                f"deleting {len(keys)} objects",
                lambda: self._client.delete_objects(
                    Bucket=self._location.bucket, Delete={"Objects": named, "Quiet": True}
                ),
            )
        except SettingsError:
            return keys
        root = len(self._key(""))
        return [refused["Key"][root:] for refused in answer.get("Errors", [])]

    def spark_url(self, key: str) -> str:
        return f"s3a://{self._location.bucket}/{self._key(key)}"

    def filesystem(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """Opened with the current credentials at each use, because temporary credentials expire."""
        credentials = self._credentials()
        endpoint = urlsplit(self._client.meta.endpoint_url)
        opened = pyarrow.fs.S3FileSystem(
            access_key=credentials.access_key,
            secret_key=credentials.secret_key,
            session_token=credentials.token,
            region=self._client.meta.region_name,
            scheme=endpoint.scheme,
            endpoint_override=endpoint.netloc if self._location.endpoint else None,
            force_virtual_addressing=bool(self._location.endpoint) and not self._location.path_style,
            connect_timeout=CONNECT_SECONDS,
            request_timeout=ANSWER_SECONDS,
            retry_strategy=pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=READING_ATTEMPTS),
        )
        return opened, self._location.path

    def _credentials(self) -> ReadOnlyCredentials:
        return self._calls("finding credentials", lambda: credentials_of(self._session))

    def _key(self, key: str) -> str:
        return f"{self._location.prefix}/{key}" if self._location.prefix else key

    def _put(self, key: str, content: bytes) -> None:
        self._calls(
            f"putting {key}",
            lambda: self._client.put_object(
                Bucket=self._location.bucket, Key=self._key(key), Body=content, IfNoneMatch="*"
            ),
        )

    def _put_parts(self, key: str, source: BinaryIO, part_bytes: int) -> None:
        """If the process dies here, parts without an object are left; the bucket's lifecycle rule removes them."""
        bucket, name = self._location.bucket, self._key(key)
        upload = self._calls(f"beginning {key}", lambda: self._client.create_multipart_upload(Bucket=bucket, Key=name))
        upload_id = upload["UploadId"]
        try:
            parts = self._parts(key, source, upload_id, part_bytes)
            self._calls(
                f"completing {key}",
                lambda: self._client.complete_multipart_upload(
                    Bucket=bucket, Key=name, UploadId=upload_id, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
                ),
            )
        except BaseException:
            with suppress(CdcError):
                self._calls(
                    f"giving up {key}",
                    lambda: self._client.abort_multipart_upload(Bucket=bucket, Key=name, UploadId=upload_id),
                )
            raise

    def _parts(self, key: str, source: BinaryIO, upload_id: str, part_bytes: int) -> "list[CompletedPartTypeDef]":
        source.seek(0)
        blocks = iter(lambda: source.read(part_bytes), b"")
        return [self._put_part(key, upload_id, number, block) for number, block in enumerate(blocks, start=1)]

    def _put_part(self, key: str, upload_id: str, number: int, block: bytes) -> "CompletedPartTypeDef":
        answer = self._calls(
            f"putting part {number} of {key}",
            lambda: self._client.upload_part(
                Bucket=self._location.bucket, Key=self._key(key), UploadId=upload_id, PartNumber=number, Body=block
            ),
        )
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _settled(self, key: str, source: BinaryIO, put: Callable[[], None]) -> None:
        """Calls `put`. If the key is taken or the upload is gone, reads the object to see whose try succeeded."""
        try:
            put()
        except (ObjectExists, ObjectMissing) as refused:
            if not self._holds(key, source):
                raise object_exists(key) from refused

    def _holds(self, key: str, source: BinaryIO) -> bool:
        """Whether the object has the bytes of `source`, compared block by block."""

        def compare() -> bool:
            source.seek(0)
            with closing(self._client.get_object(Bucket=self._location.bucket, Key=self._key(key))["Body"]) as body:
                same = all(source.read(len(block)) == block for block in body.iter_chunks(BLOCK_BYTES))
            return same and not source.read(1)

        try:
            return self._calls(f"reading back {key}", compare)
        except ObjectMissing as gone:
            raise ObjectStoreAway(
                f"{key} under {self.url} was created and deleted while it was put",
                remedy="the same call is safe to repeat",
            ) from gone

    def _page(self, below: str, **place: str) -> "ListObjectsV2OutputTypeDef":
        client: Any = self._client  # its type knows no call whose parameters are chosen
        page: ListObjectsV2OutputTypeDef = self._calls(
            f"listing {below}",
            lambda: client.list_objects_v2(
                Bucket=self._location.bucket, Prefix=below, MaxKeys=self._page_keys, **place
            ),
        )
        if "IsTruncated" not in page:
            raise ObjectStoreAway(
                f"listing {below} under {self.url} was answered with success by what does not speak S3",
                expected="a listing",
                remedy="look for a proxy that answers in its place; the same call is safe to repeat",
            )
        return page


def _time_of(found: Mapping[str, Any]) -> int | None:
    return _microseconds(found["LastModified"]) if "LastModified" in found else None


def _microseconds(moment: datetime) -> int:
    """Returns microseconds since 1970, in whole seconds: that is what every call of every server returns."""
    return int(moment.timestamp()) * 1_000_000
