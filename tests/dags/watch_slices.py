"""Reports the events of a pipeline's slice triggers, PIPELINE TABLE…, over one shared stream, until it is ended."""

import asyncio
import sys

from airflow.triggers.shared_stream import SharedStreamManager
from cdc_trigger import SliceReadyTrigger

from tests.dags.airflow_process import report


async def watch(manager: SharedStreamManager, number: int, trigger: SliceReadyTrigger) -> None:
    stream = manager.subscribe(trigger_id=number, trigger=trigger, key=trigger.shared_stream_key())
    async for event in trigger.filter_shared_stream(stream):
        report(event.payload)


async def main() -> None:
    triggers = [SliceReadyTrigger(pipeline=sys.argv[1], table=table) for table in sys.argv[2:]]
    if len({trigger.shared_stream_key() for trigger in triggers}) != 1:
        sys.exit("the triggers share no stream")
    manager = SharedStreamManager()
    await asyncio.gather(*(watch(manager, number, trigger) for number, trigger in enumerate(triggers)))


if __name__ == "__main__":
    asyncio.run(main())
