"""Reports what the DAGs' retry policies make of each of our errors, and of one of Airflow's own."""

import inspect
from collections.abc import Iterator
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from cdc_dag import default_args

from cdc_pipeline.errors import CdcError
from tests.dags.airflow_process import report


def errors(root: type[CdcError]) -> Iterator[type[CdcError]]:
    yield root
    for error in root.__subclasses__():
        yield from errors(error)


def made(error: type[CdcError]) -> CdcError:
    """An error of this class. What else its class requires is a number of no meaning."""
    parameters = inspect.signature(error).parameters.values()
    required = [each for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    others: dict[str, Any] = dict.fromkeys((each.name for each in required), 0)
    return error("x", **others)


def main() -> None:
    policies = {
        "slice": default_args(pauses=True)["retry_policy"],
        "maintenance": default_args()["retry_policy"],
        "backfill": default_args(waits_for_lease=True)["retry_policy"],
    }
    raised: list[Exception] = [made(error) for error in errors(CdcError)]
    raised.append(AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR)))
    report(
        {
            type(error).__name__: {name: policy.evaluate(error, 1, 5).action.value for name, policy in policies.items()}
            for error in raised
        }
    )


if __name__ == "__main__":
    main()
