"""The task of a slice DAG that a resident worker runs. It starts and ends in the triggerer, without a task process."""

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Asset, BaseOperator
from airflow.triggers.base import StartTriggerArgs
from cdc_trigger import SliceRunTrigger

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings


class SliceRun(BaseOperator):
    """Asks the resident workers to apply the table's slices, and waits in the triggerer for the outcome.

    It stays open for `worker.run_length`, and applies slices as they come.

    With `worker.updates_lake_asset`, a run that applied something ends in a task process: nothing else can update
    the asset. Airflow does not retry a failed run. As after any failure, the wake-up policy starts the next one.
    """

    start_from_trigger = True

    def __init__(self, *, settings: Settings, table: TableName, lake: Asset, **kwargs: Any) -> None:
        super().__init__(outlets=[lake], **kwargs | {"retries": 0})
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=f"{SliceRunTrigger.__module__}.{SliceRunTrigger.__name__}",
            trigger_kwargs={
                "pipeline": settings.name,
                "table": str(table),
                "resumes": settings.worker.updates_lake_asset,
                "run_seconds": settings.worker.run_length.total_seconds(),
            },
            next_method="update_asset",
        )

    def update_asset(self, context: Mapping[str, Any], event: dict[str, Any]) -> dict[str, Any]:
        """Updates the asset with the report of the run, and returns the report."""
        (lake,) = self.outlets
        context["outlet_events"][lake].extra = event
        return event
