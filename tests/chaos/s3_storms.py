"""An S3 server that fails again and again for a while, or is full for a while, as faults of a fire."""

import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from random import Random

from cdc_pipeline.areas import CDC_EVENT
from tests.chaos.bank import Bank, NobodyThere
from tests.chaos.fire import Kind, Lasting
from tests.support.fault_plan import FaultPlan
from tests.support.faulty_server import CONFLICT, NO_ROOM, PASSING, PRECONDITION, Call, Fault, Request, no_answer

SHARE = 0.2
SECONDS = 5, 15
BEFORE_A_CUT_SECONDS = 4
UNANSWERED = no_answer(5)
FAULTS = (*PASSING, *PASSING, CONFLICT, PRECONDITION, UNANSWERED)


def s3_kinds(plan: FaultPlan) -> tuple[Kind, ...]:
    def storm(_: Bank, chance: Random) -> Lasting:
        return lasting(plan.storm(Random(chance.random()), FAULTS, share=SHARE), chance.uniform(*SECONDS))

    def no_room(bank: Bank, chance: Random) -> Lasting:
        """Begins shortly before the consumer has something to put."""
        length = bank.settings.slice_length.total_seconds()
        if time.time() % length < length - BEFORE_A_CUT_SECONDS:
            raise NobodyThere
        made = plan.made[Call.PUT, NO_ROOM.name]
        full = lasting(plan.failing(full_for_events), BEFORE_A_CUT_SECONDS + chance.uniform(*SECONDS))
        return replace(full, has_hit=lambda: plan.made[Call.PUT, NO_ROOM.name] > made)

    return (
        Kind(site="S3", fault="a fifth of all calls fails", share=2, strike=storm),
        Kind(site="S3", fault="no room for the consumer", share=1, strike=no_room),
    )


def full_for_events(request: Request) -> Fault | None:
    return NO_ROOM if request.call is Call.PUT and f"/{CDC_EVENT}/" in request.path else None


def lasting(block: AbstractContextManager[None], seconds: float) -> Lasting:
    entered = ExitStack()
    entered.enter_context(block)
    return Lasting(seconds=seconds, end=entered.close)
