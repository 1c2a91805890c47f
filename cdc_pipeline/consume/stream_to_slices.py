"""stream_to_slices: writes change events into slice files, registers them, and then confirms them to the source."""

from collections.abc import Callable

from cdc_pipeline.consume.consumer import Consumer


def stream_to_slices(consumer: Consumer, is_done: Callable[[], bool], beat: Callable[[], None] = lambda: None) -> None:
    """Reads the stream until `is_done` returns True. Before each read, calls `is_done` and then `beat`.

    Every cut is durable before its events are confirmed to the source. Events of the open slice are not registered
    when the call ends; the next consumer reads them again.

    Raises StaleEpoch when another consumer took the stream, StreamMoved when the stream has to be opened again.
    """
    while not is_done():
        beat()
        for cut in consumer.read_cuts():
            ranges = consumer.offset_ranges(cut)
            if not consumer.is_to_be_registered(cut, ranges):
                if not ranges:
                    consumer.check_tables()
                continue
            consumer.check_tables()
            slices = consumer.write_slice_files(cut, ranges)
            consumer.decide_and_register(cut, ranges, slices)
            consumer.confirm(cut)
            consumer.end_column_changes(cut)
        consumer.send_heartbeat_if_due()


def stream_to_slices_until_idle(consumer: Consumer) -> int:
    """Registers every event that the source held at the time of the call; returns the end of the last cut."""
    marker = consumer.send_marker()
    stream_to_slices(consumer, lambda: consumer.has_registered_through(marker))
    return consumer.position
