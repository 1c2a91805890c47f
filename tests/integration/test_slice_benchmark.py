"""The benchmark of a slice: its figures are of arms that hold the same rows, or there are none."""

from benchmarks.slice import measure


def test_every_arm_runs_and_what_can_be_compared_is_equal(spark_url: str) -> None:
    seconds = measure(spark_url, 1, rows=500, changes=20)
    assert {name: len(taken) for name, taken in seconds.items()} == {"this project": 1, "append": 1, "documented": 1}
