"""A log that is too long is put aside while its process goes on writing."""

import os
from pathlib import Path

from cdc_pipeline.launcher.supervisor import LONGEST_LOG_BYTES, opened_log, shorten


def test_the_writer_goes_on_at_the_beginning_of_the_log_that_was_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "consumer.log"
    with opened_log(path) as output:
        os.truncate(path, LONGEST_LOG_BYTES)
        shorten(path)
        assert path.stat().st_size == LONGEST_LOG_BYTES
        output.write(b"one line too many\n")
        output.flush()
        shorten(path)
        output.write(b"goes on\n")
        output.flush()
        shorten(path)
    assert path.read_bytes() == b"goes on\n"
    assert path.with_suffix(".log.1").read_bytes().endswith(b"\0one line too many\n")
