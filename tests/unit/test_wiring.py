"""A task that is told to end leaves what it holds, as after any error."""

import os
import signal

import pytest

from cdc_pipeline.wiring import left_on_termination


def test_termination_leaves_the_block_and_the_handler_is_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, left_on_termination():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
