"""What a table's error counts as: an outage of a server or a disk, or a damaged file."""

import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from cdc_pipeline.errors import CdcError, LakeError, ObjectStoreAway
from cdc_pipeline.operations.table_errors import result_or_error
from cdc_pipeline.record import TableName

TABLE = TableName.parse("shop.public.orders")


def failure(call: Callable[[], object]) -> CdcError:
    found = result_or_error(call, TABLE, otherwise="table not compared")
    assert isinstance(found, CdcError)
    return found


def test_a_damaged_parquet_file_is_no_outage_of_the_store() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"v": [f"x{number}" for number in range(9_999)]}), sink)
    content = bytearray(sink.getvalue())
    content[len(content) // 2] ^= 255
    error = failure(lambda: pq.read_table(io.BytesIO(bytes(content))))
    assert (type(error), error.outage) == (LakeError, False)
    assert "a file is damaged: " in str(error)


def test_a_store_that_is_away_is_an_outage() -> None:
    nobody = pyarrow.fs.S3FileSystem(
        access_key="a", secret_key="b", region="eu-west-1", scheme="http", endpoint_override="127.0.0.1:1"
    )
    for call in (
        lambda: pq.read_table("bucket/a.parquet", filesystem=nobody),
        lambda: nobody.get_file_info(pyarrow.fs.FileSelector("bucket/a")),
        lambda: pyarrow.fs.LocalFileSystem().open_input_file("/no/file"),
    ):
        assert type(failure(call)) is ObjectStoreAway


def test_a_time_limit_is_an_outage() -> None:
    def wait() -> None:
        raise TimeoutError

    assert type(failure(wait)) is ObjectStoreAway
