"""On S3, what killed writes left is found by listing the table's names, however many folders they are in."""

from datetime import UTC, datetime

from cdc_pipeline.lake.maintenance import delete_leftovers
from tests.support.faulty_server import Call, faulty
from tests.support.s3 import s3_objects

TABLE = "datalake/shop/public/people"
PAST, FUTURE = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


def test_the_folders_of_claims_cost_no_request_each(s3_endpoint: str, s3_prefix: str) -> None:
    with faulty(s3_endpoint) as server:
        store = s3_objects(server.endpoint, s3_prefix)
        finished = [f"{TABLE}/claim-{number:02d}-x/part-0.parquet" for number in range(30)]
        for key in (*finished, f"{TABLE}/claim-07-x/_temporary/0/part-0.parquet"):
            store.put_if_absent(key, b"x")
        server.seen.clear()
        assert delete_leftovers(store, TABLE, PAST) == 0
        assert [request.call for request in server.seen] == [Call.LIST, Call.HEAD]
        assert delete_leftovers(store, TABLE, FUTURE) == 1
        assert [found.key for found in store.list_prefix("")] == finished
