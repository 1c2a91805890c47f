"""Reports what the DAGs' retry policies make of each of our errors."""

from collections.abc import Iterator

from cdc_dag import default_args

from cdc_pipeline.errors import CdcError
from tests.dags.airflow_process import report


def errors(root: type[CdcError]) -> Iterator[type[CdcError]]:
    yield root
    for error in root.__subclasses__():
        yield from errors(error)


def main() -> None:
    policies = {
        "slice": default_args(pauses=True)["retry_policy"],
        "maintenance": default_args()["retry_policy"],
        "backfill": default_args(waits_for_lease=True)["retry_policy"],
    }
    report(
        {
            error.__name__: {name: policy.evaluate(error("x"), 1, 5).action.value for name, policy in policies.items()}
            for error in errors(CdcError)
        }
    )


if __name__ == "__main__":
    main()
