"""Reports what parsing the DAG folder yields, costs and imports: for each pipeline file PATH… in turn."""

import os
import sys
import time
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.plugins_manager import ensure_plugins_loaded
from airflow.serialization.serialized_objects import DagSerialization

from tests.dags.airflow_process import report

HEAVY = ("pyspark", "pyarrow", "psycopg2", "asyncpg", "boto3", "deltalake", "pandas", "numpy", "grpc", "sqlalchemy")


def described(dag: Any) -> dict[str, Any]:
    return {
        "tags": sorted(dag.tags),
        "doc_md": dag.doc_md,
        "description": dag.description,
        "owners": sorted({task.owner for task in dag.tasks}),
        "max_active_runs": dag.max_active_runs,
        "params": {name: form_field(dag.params.get_param(name)) for name in dag.params},
        "has_retry_policy": all(task.has_retry_policy for task in dag.tasks),
        "serialised": DagSerialization.to_dict(dag),
    }


def form_field(param: Any) -> dict[str, Any]:
    return {"description": param.description, **param.schema}


def parsed_beside(path: str) -> dict[str, Any]:
    os.environ["CDC_CONFIG"] = path
    before = set(sys.modules)
    started = time.process_time()
    bag = DagBag()
    seconds = time.process_time() - started
    new = set(sys.modules) - before
    return {
        "import_errors": bag.import_errors,
        "seconds": seconds,
        "heavy": sorted(name for name in HEAVY if name in new),
        "dags": {dag_id: described(dag) for dag_id, dag in bag.dags.items()},
    }


def main() -> None:
    ensure_plugins_loaded()
    report([parsed_beside(path) for path in sys.argv[1:]])


if __name__ == "__main__":
    main()
