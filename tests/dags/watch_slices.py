"""Reports the events of the triggers of a pipeline and its tables, PIPELINE TABLE…, until it is ended.

Those of the tables' slices and the one of wanted snapshots share one stream.
"""

import asyncio
import sys
from typing import Any

from airflow.triggers.shared_stream import SharedStreamManager
from cdc_trigger import SliceReadyTrigger, SnapshotWantedTrigger

from tests.dags.airflow_process import report


async def watch(manager: SharedStreamManager, number: int, trigger: Any) -> None:
    stream = manager.subscribe(trigger_id=number, trigger=trigger, key=trigger.shared_stream_key())
    async for event in trigger.filter_shared_stream(stream):
        report(event.payload)


async def main() -> None:
    pipeline, *tables = sys.argv[1:]
    slices = (SliceReadyTrigger(pipeline=pipeline, table=table) for table in tables)
    triggers = [*slices, SnapshotWantedTrigger(pipeline=pipeline, tables=tables)]
    if len({trigger.shared_stream_key() for trigger in triggers}) != 1:
        sys.exit("the triggers share no stream")
    manager = SharedStreamManager()
    await asyncio.gather(*(watch(manager, number, trigger) for number, trigger in enumerate(triggers)))


if __name__ == "__main__":
    asyncio.run(main())
