"""The benchmarks give figures of arms that did the same work, or none; here in small, whatever the figures are."""

import benchmarks.consumer
import benchmarks.slice
from cdc_pipeline.stack.postgres import PostgresServer


def test_every_arm_of_the_slice_runs_and_those_that_can_be_compared_hold_the_same_rows(spark_url: str) -> None:
    seconds = benchmarks.slice.measure(spark_url, 1, rows=500, changes=20)
    assert {name: len(taken) for name, taken in seconds.items()} == {"this project": 1, "append": 1, "documented": 1}


def test_every_arm_of_the_consumer_sees_every_event(postgres: PostgresServer) -> None:
    rates = benchmarks.consumer.measure(postgres, 1_000, 1)
    assert {name: len(found) for name, found in rates.items()} == {
        "server alone": 1,
        "pg_recvlogical": 1,
        "this project": 1,
        "plain loop": 1,
    }
