"""Named steps: every call that touches the outside announces itself, so that a test can kill it anywhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Moment(StrEnum):
    """BEFORE: nothing happened yet. AFTER: it happened, nobody was told. ACKNOWLEDGED: the caller has the answer."""

    BEFORE = "before"
    AFTER = "after"
    ACKNOWLEDGED = "acknowledged"


OnStep = Callable[[str, Moment], None]


def no_step(_name: str, _moment: Moment) -> None:
    """What production injects."""


@contextmanager
def step(on_step: OnStep, name: str) -> Iterator[None]:
    """Wrap exactly one outside call: `with step(on_step, "slice_file.put"): store.put(...)`.

    `name` is `noun.verb`. An exception of the call itself passes through, and AFTER is then not announced.
    """
    on_step(name, Moment.BEFORE)
    yield
    on_step(name, Moment.AFTER)
    on_step(name, Moment.ACKNOWLEDGED)
