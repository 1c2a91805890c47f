"""Named steps around every call outside the process, so that a test can kill or fail the process at each of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Moment(StrEnum):
    """BEFORE: the call was not made yet. AFTER: it took effect, but its answer can still be lost.

    ACKNOWLEDGED: the caller has the answer.
    """

    BEFORE = "before"
    AFTER = "after"
    ACKNOWLEDGED = "acknowledged"


OnStep = Callable[[str, Moment], None]


def no_step(_name: str, _moment: Moment) -> None:
    """Does nothing; production passes it as `on_step`."""


@contextmanager
def step(on_step: OnStep, name: str) -> Iterator[None]:
    """Wraps exactly one outside call: `with step(on_step, "slice_file.put"): store.put(...)`.

    `name` is `noun.verb`. An exception of the call passes through; AFTER and ACKNOWLEDGED are not announced then.
    """
    on_step(name, Moment.BEFORE)
    yield
    on_step(name, Moment.AFTER)
    on_step(name, Moment.ACKNOWLEDGED)
