"""What S3 does to a call, and what becomes of it."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from threading import Lock

import pytest

from cdc_pipeline.errors import (
    ObjectExists,
    ObjectMissing,
    ObjectStoreAway,
    SettingsError,
    SourceAway,
    SourceError,
)
from cdc_pipeline.object_store.s3 import S3ObjectStore
from cdc_pipeline.object_store.s3_location import S3Location
from cdc_pipeline.settings.change_files import CsvSettings
from cdc_pipeline.sources.files.record_file import RecordFile
from cdc_pipeline.sources.files.record_formats import FileLayout
from tests.support.faulty_server import (
    ACTED_AND_500,
    ACTED_AND_CUT,
    INTERNAL,
    KEEPS,
    NO_ROOM,
    SLOW_DOWN,
    UNCONDITIONAL,
    Call,
    Fault,
    FaultyServer,
    Request,
    Rule,
    faulty,
    refused,
)
from tests.support.s3 import BUCKET, REGION, s3_location, s3_objects
from tests.support.served import served

SHORT = timedelta(seconds=1)
SMALLEST_PART = 5 << 20
KEY = "cdc-event/shop/one"
RESTART = r"and restart the processes \(`cdc down`, `cdc up`\)$"
PASSING = [(500, "InternalError"), (503, "SlowDown"), (429, "TooManyRequests"), (409, "ConditionalRequestConflict")]


@pytest.fixture
def server(s3_endpoint: str) -> Iterator[FaultyServer]:
    with faulty(s3_endpoint) as server:
        yield server


@pytest.fixture
def objects(server: FaultyServer, s3_prefix: str) -> S3ObjectStore:
    return S3ObjectStore(s3_location(server.endpoint, s3_prefix), part_bytes=SMALLEST_PART, is_proven=True)


def first(times: int, fault: Fault, method: str = "", part: str = "") -> Rule:
    """The first requests of that kind."""
    numbers, lock = count(), Lock()

    def rule(request: Request) -> Fault | None:
        if request.method != (method or request.method) or part not in f"{request.path}?{request.query}":
            return None
        with lock:
            return fault if next(numbers) < times else None

    return rule


@pytest.mark.parametrize(("status", "code"), PASSING)
def test_what_passes_is_tried_again(objects: S3ObjectStore, server: FaultyServer, status: int, code: str) -> None:
    for method in ("PUT", "GET", "HEAD", "DELETE"):
        server.rule = first(2, refused(status, code), method)
        objects.put_if_absent(KEY, b"content")
        assert objects.get(KEY) == b"content"
        assert objects.head(KEY).size_bytes == 7
        assert [found.key for found in objects.list_prefix("cdc-event")] == [KEY]
        objects.delete(KEY)
    assert len(server.faults) == 8


@pytest.mark.parametrize("fault", [ACTED_AND_CUT, ACTED_AND_500])
def test_a_put_whose_answer_was_lost_is_recognised_as_ours(
    objects: S3ObjectStore, server: FaultyServer, fault: Fault
) -> None:
    server.rule = first(1, fault, "PUT")
    objects.put_if_absent(KEY, b"content")
    assert len(server.faults) == 1
    assert objects.get(KEY) == b"content"


def test_a_put_that_came_second_after_a_lost_answer_is_refused(objects: S3ObjectStore, server: FaultyServer) -> None:
    objects.put_if_absent(KEY, b"another's")
    server.rule = first(1, ACTED_AND_CUT, "PUT")
    with pytest.raises(ObjectExists, match=KEY):
        objects.put_if_absent(KEY, b"content")


@pytest.mark.parametrize("fault", [ACTED_AND_CUT, ACTED_AND_500, INTERNAL])
@pytest.mark.parametrize(("method", "part"), [("POST", "?uploads"), ("PUT", "partNumber=2"), ("POST", "?uploadId")])
def test_a_file_in_parts_outlives_every_lost_answer(
    objects: S3ObjectStore, server: FaultyServer, tmp_path: Path, fault: Fault, method: str, part: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"z" * (SMALLEST_PART + 1))
    server.rule = first(1, fault, method, part)
    objects.put_file_if_absent(KEY, file)
    assert len(server.faults) == 1
    assert objects.head(KEY).size_bytes == SMALLEST_PART + 1


def test_parts_that_came_second_are_taken_back(s3_endpoint: str, s3_prefix: str, tmp_path: Path) -> None:
    objects = S3ObjectStore(s3_location(s3_endpoint, s3_prefix), part_bytes=SMALLEST_PART, is_proven=True)
    objects.put_if_absent(KEY, b"first")
    file = tmp_path / "file"
    file.write_bytes(b"z" * (SMALLEST_PART + 1))
    with pytest.raises(ObjectExists, match=KEY):
        objects.put_file_if_absent(KEY, file)
    uploads = objects._client.list_multipart_uploads(Bucket=BUCKET, Prefix=s3_prefix)
    assert uploads.get("Uploads", []) == []


def test_a_server_that_stays_away_is_an_error_that_may_be_retried(server: FaultyServer, s3_prefix: str) -> None:
    objects = S3ObjectStore(s3_location(server.endpoint, s3_prefix), timeout=SHORT, is_proven=True)
    server.rule = lambda _: SLOW_DOWN
    with pytest.raises(ObjectStoreAway, match=f"getting {KEY} under s3://{BUCKET}.*SlowDown"):
        objects.get(KEY)
    assert len(server.faults) > 1
    with pytest.raises(ObjectStoreAway, match="Could not connect"):
        S3ObjectStore(s3_location("http://127.0.0.1:9"), timeout=SHORT, is_proven=True).get(KEY)


def test_a_full_server_is_an_error_at_once_and_the_same_put_succeeds_when_there_is_room(
    objects: S3ObjectStore, server: FaultyServer
) -> None:
    server.rule = first(1, NO_ROOM, "PUT")
    with pytest.raises(ObjectStoreAway, match=f"putting {KEY} under s3://{BUCKET}.*XMinioStorageFull.*free space"):
        objects.put_if_absent(KEY, b"content")
    objects.put_if_absent(KEY, b"content")
    assert len(server.faults) == 1


def test_what_somebody_must_mend_is_not_retried(server: FaultyServer, s3_prefix: str) -> None:
    nowhere = S3Location(bucket="no-such-bucket", endpoint=server.endpoint, region=REGION, path_style=True)
    lake = S3ObjectStore(nowhere, is_proven=True)
    for call in (lake.get, lambda key: lake.put_if_absent(key, b"")):
        with pytest.raises(SettingsError, match=r"NoSuchBucket.*expected a bucket that exists; create it"):
            call(KEY)
    objects = s3_objects(server.endpoint, s3_prefix)
    for status, code, words in (
        (403, "AccessDenied", f"credentials that may list, get, put and delete.*{RESTART}"),
        (400, "AuthorizationHeaderMalformed", r"set object_store\.region"),
        (400, "ExpiredToken", f"a session token that is still valid; get new credentials.*{RESTART}"),
        (501, "NotImplemented", "speaks S3 with conditional writes; move the lake"),
    ):
        server.rule = first(9, refused(status, code), "PUT")
        with pytest.raises(SettingsError, match=words):
            objects.put_if_absent(KEY, b"content")
    with pytest.raises(ObjectMissing):
        objects.get(KEY)


def test_a_busy_key_service_is_waited_for(objects: S3ObjectStore, server: FaultyServer) -> None:
    server.rule = first(2, refused(400, "KMS.ThrottlingException"), "PUT")
    objects.put_if_absent(KEY, b"content")
    assert len(server.faults) == 2


class EmptyPage(BaseHTTPRequestHandler):
    """Lists nothing on its first page, which says that another one follows."""

    def do_GET(self) -> None:
        more, found = "<NextContinuationToken>next</NextContinuationToken>", ""
        if "continuation-token=next" in self.path:
            more, found = "", '<Contents><Key>a/1</Key><Size>1</Size><ETag>"x"</ETag></Contents>'
        truncated = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
        content = f"<ListBucketResult>{truncated}{more}{found}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def test_an_empty_page_is_not_the_end_of_a_list() -> None:
    with served(EmptyPage) as endpoint:
        objects = S3ObjectStore(
            S3Location(bucket="b", endpoint=endpoint, region=REGION, path_style=True), is_proven=True
        )
        assert [found.key for found in objects.list_prefix("a")] == ["a/1"]


def test_a_file_that_may_not_be_read_is_no_outage_and_one_of_any_name_is_read(
    server: FaultyServer, s3_prefix: str
) -> None:
    objects = S3ObjectStore(s3_location(server.endpoint, s3_prefix), timeout=SHORT, is_proven=True)
    key, layout = "orders//1.csv", FileLayout(csv=CsvSettings())
    objects.put_if_absent(key, b"id\n1\n")
    server.rule = first(9, refused(403, "InvalidObjectState"), "GET")
    with pytest.raises(SourceError, match=r"copying orders//1\.csv .*InvalidObjectState") as denied:
        RecordFile(objects, key, layout)
    server.rule = first(99, SLOW_DOWN, "GET")
    with pytest.raises(SourceAway, match=r"copying orders//1\.csv .*SlowDown"):
        RecordFile(objects, key, layout)
    server.rule = first(1, ACTED_AND_CUT, "GET")
    with closing(RecordFile(objects, key, layout)) as file:
        assert file.take_block(1).line(0) == b'{"id":"1"}'
    assert not denied.value.outage


def test_many_are_deleted_by_one_call_for_a_thousand(
    objects: S3ObjectStore, server: FaultyServer, s3_endpoint: str, s3_prefix: str
) -> None:
    keys = [f"{KEY}/{number}" for number in range(1_001)]
    for key in keys[-2:]:
        s3_objects(s3_endpoint, s3_prefix).put_if_absent(key, b"content")
    objects.delete_all(keys)
    assert [request.call for request in server.seen] == [Call.DELETE] * 2
    assert list(objects.list_prefix("")) == []


@pytest.mark.parametrize("fault", [KEEPS, refused(501, "NotImplemented"), refused(400, "MissingContentMD5")])
def test_what_a_server_does_not_delete_with_many_is_deleted_by_itself(
    objects: S3ObjectStore, server: FaultyServer, fault: Fault
) -> None:
    keys = [f"{KEY}/{number}" for number in range(3)]
    for key in keys:
        objects.put_if_absent(key, b"content")
    server.rule = lambda request: fault if request.method == "POST" else None
    objects.delete_all(keys)
    assert list(objects.list_prefix("")) == []


def test_an_object_of_many_that_may_not_be_deleted_is_named(objects: S3ObjectStore, server: FaultyServer) -> None:
    def rule(request: Request) -> Fault | None:
        may_not = refused(403, "AccessDenied") if request.path.endswith("/1") else None
        return KEEPS if request.method == "POST" else may_not

    server.rule = rule
    with pytest.raises(SettingsError, match=f"deleting {KEY}/1 under .*AccessDenied.*may list, get, put and delete"):
        objects.delete_all([f"{KEY}/{number}" for number in range(3)])


def test_a_store_that_lets_two_writers_win_is_refused_before_anything_is_put(
    server: FaultyServer, s3_prefix: str
) -> None:
    server.rule = lambda request: UNCONDITIONAL if request.conditional else None
    lake = S3ObjectStore(s3_location(server.endpoint, s3_prefix), is_proven=False)
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"let 2 of 2 writers of one object win.*move the lake to such a store"):
            lake.put_if_absent(KEY, b"content")
    assert list(lake.list_prefix("")) == []


def test_a_store_is_proven_once_and_only_for_who_writes(server: FaultyServer, s3_prefix: str) -> None:
    lake = S3ObjectStore(s3_location(server.endpoint, s3_prefix), is_proven=False)
    assert list(lake.list_prefix("cdc-event")) == []
    assert [request.method for request in server.seen] == ["GET"]
    lake.put_if_absent(KEY, b"content")
    before = len(server.seen)
    lake.put_if_absent(f"{KEY}-2", b"content")
    assert [request.method for request in server.seen[before:]] == ["PUT"]
    assert [found.key for found in lake.list_prefix("")] == [KEY, f"{KEY}-2"]


def test_keys_beyond_one_page_are_all_listed_and_marks_of_folders_are_not(s3_endpoint: str, s3_prefix: str) -> None:
    objects = S3ObjectStore(s3_location(s3_endpoint, s3_prefix), page_keys=3, is_proven=True)
    keys = [f"many/{number}" for number in range(7)]
    for key in [*keys, "many/3/", "many/folder/"]:
        objects.put_if_absent(key, b"")
    assert [found.key for found in objects.list_prefix("many")] == keys
