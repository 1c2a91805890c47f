"""A held snapshot goes on for its other readers if one of them is stopped in the middle of a copy."""

import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.connection import Listener

import pytest

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.settings.mysql import MysqlSource
from cdc_pipeline.sources.mysql.held_snapshot import SnapshotServer, query_snapshot
from cdc_pipeline.sources.mysql.session import address_of, connect_for_texts
from tests.support.mysql_source import MysqlShop


def test_a_reader_that_takes_no_rows_any_more_keeps_no_other_reader_and_no_end_of_the_snapshot_waiting(
    shop: MysqlShop,
) -> None:
    source = MysqlSource.model_validate({"kind": "mysql", "url": shop.url})
    address, key = address_of(source, shop.folder), secrets.token_bytes(32)
    many = "SELECT repeat('x', 1000) FROM information_schema.collations AS a, information_schema.collations AS b"
    began = shop.run("SHOW GLOBAL STATUS LIKE 'Com_kill'")
    with closing(connect_for_texts(address)) as connection, Listener(("127.0.0.1", 0), backlog=64) as listener:
        host, port = listener.address
        exported = json.dumps({"host": host, "port": port, "key": key.hex()})
        with (
            SnapshotServer(connection, address, listener, key, take_seconds=0.5).running(),
            ThreadPoolExecutor() as others,
            closing(query_snapshot(exported, many)) as stopped,
        ):
            next(stopped)
            (block,) = others.submit(lambda: list(query_snapshot(exported, "SELECT 7"))).result(timeout=30)
            assert block.column(0).to_pylist() == [b"7"]
            with pytest.raises(SnapshotError, match="is gone"):
                list(stopped)
    assert shop.run("SHOW GLOBAL STATUS LIKE 'Com_kill'") != began
