"""Reports what the DAGs' retry policies make of each of our errors."""

import inspect
from collections.abc import Iterator
from typing import Any

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
    report(
        {
            error.__name__: {name: policy.evaluate(made(error), 1, 5).action.value for name, policy in policies.items()}
            for error in errors(CdcError)
        }
    )


if __name__ == "__main__":
    main()
