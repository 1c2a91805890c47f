"""Which host names Airflow answers for: any in an Airflow of one's own, only its own ones where `cdc up` started it."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.dags.airflow_process import Airflow, answered

pytestmark = pytest.mark.xdist_group("airflow")

ANSWERED, REFUSED = 404, 400
"""The server of the test has no pages."""
SERVICE = "airflow-api-server"
EMBEDDED = {
    "CDC_AIRFLOW_IS_EMBEDDED": "true",
    "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{SERVICE}:8080/execution/",
}
OF_ONES_OWN = {"CDC_AIRFLOW_IS_EMBEDDED": ""}


@pytest.fixture(scope="module")
def embedded(airflow: Airflow) -> Iterator["subprocess.Popen[str]"]:
    """A process of `ask_by_hosts`."""
    with airflow.process("ask_by_hosts", **EMBEDDED) as process:
        yield process


def test_an_airflow_of_ones_own_is_reached_by_every_name_that_it_has(embedded: "subprocess.Popen[str]") -> None:
    answers, _ = answered(embedded, OF_ONES_OWN, ["called", SERVICE, "10.0.0.7", "localhost"])
    assert answers == {SERVICE: ANSWERED, "10.0.0.7": ANSWERED, "localhost": ANSWERED}


@pytest.mark.parametrize(
    ("whose", "variables", "named"),
    [
        pytest.param("imported", {}, REFUSED, id="embedded, as Airflow takes it from the plugin"),
        pytest.param("called", OF_ONES_OWN | {"CDC_AIRFLOW_HOSTS": "named, other"}, ANSWERED, id="told its names"),
    ],
)
def test_a_name_that_is_not_its_own_is_refused_where_the_names_are_known(
    embedded: "subprocess.Popen[str]", whose: str, variables: dict[str, str], named: int
) -> None:
    answers, _ = answered(embedded, variables, [whose, SERVICE, "localhost", "named", "evil.example"])
    assert answers == {SERVICE: ANSWERED, "localhost": ANSWERED, "named": named, "evil.example": REFUSED}
