"""What every object store promises."""

import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from threading import Barrier, Event, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_pipeline.errors import ObjectExists, ObjectMissing
from cdc_pipeline.object_store import ObjectInfo, ObjectStore

KEY = "cdc-event/shop/public/orders/0/one.parquet"
RACERS = 16
LARGE = 8 << 20


def keys(objects: ObjectStore, prefix: str) -> list[str]:
    return [found.key for found in objects.list_prefix(prefix)]


def test_what_was_put_is_got(objects: ObjectStore) -> None:
    objects.put_if_absent(KEY, b"content")
    assert objects.get(KEY) == b"content"
    found = objects.head(KEY)
    assert found == ObjectInfo(key=KEY, size_bytes=7)
    with BytesIO() as sink:
        written = objects.copy_to(KEY, sink)
        assert sink.getvalue() == b"content"
    assert abs(written / 1_000_000 - time.time()) < 60
    assert [each.written_at for each in (found, *objects.list_prefix("cdc-event"))] == [written] * 2


def test_listing_begins_after_a_key(objects: ObjectStore) -> None:
    """A folder counts as its name and a slash, so `a.b` is listed before what is in `a`."""
    names = ["a.b", "a/1", "a/2/x", "a/2/y", "a/3", "b"]
    for name in reversed(names):
        objects.put_if_absent(f"in/{name}", b"")
    for number, name in enumerate(names, start=1):
        assert [found.key for found in objects.list_prefix("in", f"in/{name}")] == [
            f"in/{each}" for each in names[number:]
        ]
    assert [found.key for found in objects.list_prefix("in", "in/a/2/")] == [f"in/{each}" for each in names[2:]]
    assert [found.key for found in objects.list_prefix("in/a", "in")] == [f"in/{each}" for each in names[1:5]]


def test_an_empty_object_is_an_object(objects: ObjectStore) -> None:
    objects.put_if_absent(KEY, b"")
    assert objects.get(KEY) == b""
    assert objects.head(KEY).size_bytes == 0


def test_the_same_bytes_again_are_a_success(objects: ObjectStore) -> None:
    objects.put_if_absent(KEY, b"content")
    objects.put_if_absent(KEY, b"content")
    assert objects.get(KEY) == b"content"


def test_other_bytes_are_refused_and_the_first_stay(objects: ObjectStore) -> None:
    objects.put_if_absent(KEY, b"first")
    with pytest.raises(ObjectExists, match=KEY) as caught:
        objects.put_if_absent(KEY, b"other")
    assert caught.value.remedy
    assert objects.get(KEY) == b"first"


def test_an_overwritten_object_has_the_new_bytes(objects: ObjectStore) -> None:
    for content in (b"first, and longer", b"second"):
        objects.overwrite(KEY, content)
        assert objects.get(KEY) == content
    assert keys(objects, "cdc-event") == [KEY]


def test_of_sixteen_writers_that_race_exactly_one_wins(objects: ObjectStore) -> None:
    start = Barrier(RACERS)

    def put(number: int) -> bool:
        start.wait()
        try:
            objects.put_if_absent(KEY, bytes([number]) * 1000)
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as threads:
        won = list(threads.map(put, range(RACERS)))
    assert won.count(True) == 1
    assert objects.get(KEY) == bytes([won.index(True)]) * 1000
    assert keys(objects, "cdc-event") == [KEY]


def test_sixteen_writers_of_the_same_bytes_all_succeed(objects: ObjectStore) -> None:
    start = Barrier(RACERS)

    def put(_: int) -> None:
        start.wait()
        objects.put_if_absent(KEY, b"same")

    with ThreadPoolExecutor(RACERS) as threads:
        assert list(threads.map(put, range(RACERS))) == [None] * RACERS
    assert keys(objects, "cdc-event") == [KEY]


def test_a_half_written_object_is_never_seen(objects: ObjectStore) -> None:
    """Readers look all the time while a large object is written: they see nothing, or all of it."""
    done, seen = Event(), set[int]()

    def look() -> None:
        while not done.is_set():
            seen.update(found.size_bytes for found in objects.list_prefix("cdc-event"))
            try:
                seen.add(len(objects.get(KEY)))
            except ObjectMissing:
                seen.add(-1)

    reader = Thread(target=look)
    reader.start()
    try:
        objects.put_if_absent(KEY, b"x" * LARGE)
    finally:
        done.set()
        reader.join()
    assert seen <= {-1, LARGE}


def test_what_is_not_there_is_missing(objects: ObjectStore) -> None:
    for ask in (objects.get, objects.head):
        with pytest.raises(ObjectMissing, match=KEY):
            ask(KEY)


def test_a_folder_is_no_object(objects: ObjectStore) -> None:
    objects.put_if_absent(KEY, b"content")
    for ask in (objects.get, objects.head):
        with pytest.raises(ObjectMissing):
            ask("cdc-event/shop")


def test_objects_are_listed_in_key_order_below_their_folder_only(objects: ObjectStore) -> None:
    for key in ("a/b/2", "a/b/10", "a/b-2/1", "a/b/c/1", "a/bc/1", "a/b.x", "z/1"):
        objects.put_if_absent(key, key.encode())
    assert keys(objects, "a/b") == ["a/b/10", "a/b/2", "a/b/c/1"]
    assert keys(objects, "a") == ["a/b-2/1", "a/b.x", "a/b/10", "a/b/2", "a/b/c/1", "a/bc/1"]


def test_an_empty_place_lists_nothing(objects: ObjectStore) -> None:
    assert keys(objects, "a") == []
    objects.put_if_absent("b/1", b"")
    assert keys(objects, "a") == []


def test_a_deleted_object_is_gone_and_deleting_it_again_succeeds(objects: ObjectStore) -> None:
    objects.put_if_absent(KEY, b"content")
    objects.delete(KEY)
    objects.delete(KEY)
    objects.delete("never/was/there")
    assert keys(objects, "cdc-event") == []


def test_of_many_deleted_at_once_all_are_gone_also_those_that_never_were_and_no_other_is(objects: ObjectStore) -> None:
    for name in ("a&b", "ü", "kept"):
        objects.put_if_absent(f"cdc-event/{name}", b"content")
    objects.delete_all([f"cdc-event/{name}" for name in ("a&b", "never", "ü")])
    objects.delete_all([])
    assert keys(objects, "cdc-event") == ["cdc-event/kept"]
    objects.put_if_absent(KEY, b"other")
    assert objects.get(KEY) == b"other"


def test_a_file_is_put_like_its_bytes(objects: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"y" * ((1 << 20) + 1))
    objects.put_file_if_absent(KEY, source)
    assert objects.get(KEY) == b"y" * ((1 << 20) + 1)
    again = tmp_path / "again"
    again.write_bytes(b"y" * ((1 << 20) + 1))
    objects.put_file_if_absent(KEY, again)
    again.write_bytes(b"other")
    with pytest.raises(ObjectExists):
        objects.put_file_if_absent(KEY, again)
    assert objects.head(KEY).size_bytes == (1 << 20) + 1
    assert keys(objects, "cdc-event") == [KEY]


def test_encoded_keys_are_kept_letter_by_letter(objects: ObjectStore) -> None:
    for key in ("a/%C3%A9=%2F/1", "a/%25/1", "a/ /1", "a/B", "a/b"):
        objects.put_if_absent(key, key.encode())
    assert keys(objects, "a") == ["a/ /1", "a/%25/1", "a/%C3%A9=%2F/1", "a/B", "a/b"]
    assert objects.get("a/%25/1") == b"a/%25/1"


def test_parquet_is_read_through_the_file_system_at_the_same_key(objects: ObjectStore) -> None:
    table, sink = pa.table({"id": [1, 2]}), pa.BufferOutputStream()
    pq.write_table(table, sink)
    objects.put_if_absent(KEY, sink.getvalue().to_pybytes())
    filesystem, root = objects.filesystem()
    assert pq.read_table(f"{root}/{KEY}", filesystem=filesystem, partitioning=None).equals(table)


def test_the_root_has_no_slash_at_its_end(objects: ObjectStore) -> None:
    assert "://" in objects.url
    assert not objects.url.endswith("/")
    assert objects.spark_url("a/b").endswith("/a/b")


def test_of_two_large_files_that_race_one_wins_and_the_object_is_whole(objects: ObjectStore, tmp_path: Path) -> None:
    start = Barrier(2)

    def put(number: int) -> bool:
        source = tmp_path / str(number)
        source.write_bytes(bytes([number]) * (LARGE + 1))
        start.wait()
        try:
            objects.put_file_if_absent(KEY, source)
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        won = list(threads.map(put, range(2)))
    assert won.count(True) == 1
    assert objects.get(KEY) == bytes([won.index(True)]) * (LARGE + 1)
    assert keys(objects, "cdc-event") == [KEY]
