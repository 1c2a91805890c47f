"""Every outside call announces itself three times; one that fails was never announced as done."""

import pytest

from cdc_pipeline.errors import SourceAway
from cdc_pipeline.steps import Moment, no_step, step


def test_a_call_that_succeeds_is_announced_before_after_and_acknowledged() -> None:
    heard: list[object] = []
    with step(lambda name, moment: heard.append((name, moment)), "slot.confirm"):
        heard.append("the call")
    assert heard == [
        ("slot.confirm", Moment.BEFORE),
        "the call",
        ("slot.confirm", Moment.AFTER),
        ("slot.confirm", Moment.ACKNOWLEDGED),
    ]


def test_a_call_that_fails_is_announced_once_and_its_error_passes_through() -> None:
    heard: list[Moment] = []
    with pytest.raises(SourceAway), step(lambda _, moment: heard.append(moment), "slot.confirm"):
        raise SourceAway("gone")
    assert heard == [Moment.BEFORE]


@pytest.mark.parametrize("fatal", Moment)
def test_whoever_listens_can_kill_the_call_at_each_moment(fatal: Moment) -> None:
    called = []

    def die(_: str, moment: Moment) -> None:
        if moment is fatal:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), step(die, "slot.confirm"):
        called.append(True)
    assert bool(called) == (fatal is not Moment.BEFORE)


def test_production_listens_to_nothing() -> None:
    with step(no_step, "slot.confirm"):
        pass
