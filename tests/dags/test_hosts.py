"""Which host names Airflow answers for: any in an Airflow of one's own, only its own ones where `cdc up` started it."""

import pytest

from tests.dags.airflow_process import Airflow

pytestmark = pytest.mark.xdist_group("airflow")

ANSWERED, REFUSED = 404, 400
"""The server of the test has no pages."""
SERVICE = "airflow-api-server"
EXECUTION_API = {"AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{SERVICE}:8080/execution/"}


def test_an_airflow_of_ones_own_is_reached_by_every_name_that_it_has(airflow: Airflow) -> None:
    assert airflow.call("ask_by_hosts", SERVICE, "10.0.0.7", "localhost") == {
        SERVICE: ANSWERED,
        "10.0.0.7": ANSWERED,
        "localhost": ANSWERED,
    }


@pytest.mark.parametrize("variable", [{"CDC_AIRFLOW_IS_EMBEDDED": "true"}, {"CDC_AIRFLOW_HOSTS": "named, other"}])
def test_a_name_that_is_not_its_own_is_refused_where_the_names_are_known(
    airflow: Airflow, variable: dict[str, str]
) -> None:
    named = ANSWERED if "CDC_AIRFLOW_HOSTS" in variable else REFUSED
    answers = airflow.call("ask_by_hosts", SERVICE, "localhost", "named", "evil.example", **variable, **EXECUTION_API)
    assert answers == {SERVICE: ANSWERED, "localhost": ANSWERED, "named": named, "evil.example": REFUSED}
