"""A timetable of whole hours that a person chooses in the Backfill form. The scheduler starts no run by itself."""

from typing import Any

from airflow.plugins_manager import AirflowPlugin
from airflow.timetables.base import DagRunInfo, TimeRestriction, Timetable
from airflow.timetables.trigger import CronPartitionTimetable


class HoursOnRequest(CronPartitionTimetable):
    can_be_scheduled = False

    def __init__(self) -> None:
        super().__init__("0 * * * *", timezone="UTC")
        self.description = "On request, by the hour"

    @property
    def summary(self) -> str:
        return self.description

    def serialize(self) -> dict[str, Any]:
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Timetable:
        del data
        return cls()

    def next_dagrun_info_v2(
        self, *, last_dagrun_info: DagRunInfo | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        del last_dagrun_info, restriction
        return None


class CdcTimetables(AirflowPlugin):
    name = "cdc_timetables"
    timetables = [HoursOnRequest]
