"""What a Spark session keeps, and what is lost when the server ends it, as it does when it is started again."""

import pyarrow as pa
import pytest
from pyspark.sql.connect.plan import LocalRelation

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.session import checkpointed, connect, end_session
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.steps import no_step
from tests.support.lake import NOW, table_of

MADE_BY_SPARK = TableSchema(columns=(Column(name="full name", type="text", number=1),), key=("full name",))


def test_the_server_keeps_no_table_that_a_claim_sends_it(spark_url: str) -> None:
    """It keeps what is above its threshold, 1 MiB, until the session ends. That of a busy worker never does."""
    session = connect(spark_url)
    places = pa.table({"row": pa.array(range(300_000), pa.int64())})
    assert places.nbytes > 2 << 20
    sent = vars(vars(session.createDataFrame(places))["_plan"])["_child"]
    end_session(session)
    assert type(sent) is LocalRelation


def test_the_call_that_finds_its_session_gone_fails_and_the_next_one_opens_another(
    spark_url: str, store: LocalObjectStore
) -> None:
    lake = SparkLake(open_session=lambda: connect(spark_url), store=store, clock=lambda: NOW, on_step=no_step)
    table = table_of(MADE_BY_SPARK)
    lake.session.client.release_session()
    with pytest.raises(LakeError):
        lake.create_table(table)
    lake.create_table(table)
    assert lake.read_fence(table) is not None
    assert checkpointed(lake.session, lake.session.range(3)).count() == 3
    lake.close()
