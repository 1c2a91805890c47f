"""Explores the protocol under every interleaving and every fault: `python docs/model/protocol_model.py`."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from consumers import Consumer, Consumers
from explorer import Explored, Explorer, Local, Model, Move
from workers import Worker, Workers, gone
from world import Fault, Guard, Rules, World, happenings

ASKED_AGAIN = ("put", "cut", "register", "confirm", "claim", "commit", "mark", "through")
SPACES = {
    "test": (
        "01 failover=1",
        "01 crash=1 zombie=1 lost-answer=1",
        "01 zombie=1 damage=1",
        "01 zombie=2",
        "010 crash=1 zombie=1",
    ),
    "explore": (
        "01 crash=1 zombie=1 failover=1",
        "01 crash=1 zombie=1 lost-answer=1 damage=1",
    ),
}


def explore(rules: Rules, most_states: int = 10**9) -> Explored:
    return Explorer(protocol_model(rules)).explore(most_states)


def protocol_model(rules: Rules) -> Model[World]:
    consumers, workers = Consumers(rules), Workers(rules)

    def consumer(local: Local, world: World) -> list[Move[World]]:
        who = Consumer(*local)
        if not who.step:
            return [
                Move(f"somebody {words}", then, after, world.is_read) for words, then, after in consumers.start(world)
            ]
        done = [
            Move(f"consumer {who.epoch} {words}", then, after) for words, then, after in consumers.steps(who, world)
        ]
        crash = Move(f"consumer {who.epoch} crashes", Consumer(), consumers.left(who, world), is_fault=True)
        return _with_faults(who, world, done, crash)

    def worker(local: Local, world: World) -> list[Move[World]]:
        who = Worker(*local)
        if not who.step:
            return [Move(f"somebody {words}", then, after) for words, then, after in workers.start(world)]
        done = [Move(f"worker {who.epoch} {words}", then, after) for words, then, after in workers.steps(who, world)]
        crash = Move(f"worker {who.epoch} crashes", Worker(), gone(who, world), is_fault=True)
        return _with_faults(who, world, done, crash)

    return Model(
        first=rules.first_world(),
        idle=(Consumer(), Worker()),
        kinds=(consumer, worker),
        world=lambda world: [Move(words, (), then, is_fault) for words, then, is_fault in happenings(rules, world)],
        wrong=rules.wrong,
        is_good_end=rules.is_good_end,
    )


def _with_faults(
    who: Consumer | Worker, world: World, done: list[Move[World]], crash: Move[World]
) -> list[Move[World]]:
    """Whoever gets no answer asks again, as a client's retry does; to crash instead is a fault of its own."""
    moves = list(done)
    if world.allows(Fault.LOST_ANSWER) and who.step.split()[0] in ASKED_AGAIN:
        moves += [
            Move(f"{move.words}, but the answer is lost", who, move.shared.after(Fault.LOST_ANSWER), is_fault=True)
            for move in done
            if move.shared != world and move.local[0]
        ]
    if world.allows(Fault.CRASH):
        moves.append(replace(crash, shared=crash.shared.after(Fault.CRASH)))
    return moves


def space(words: str, without: Iterable[Guard] = ()) -> Rules:
    """`010 crash=1 zombie=2`: three events, the stream partition of each, and how often what may go wrong.

    With `silent` behind them, an error counts only if no alarm reports it.
    """
    events, *faults = words.removesuffix(" silent").split()
    budget = tuple((Fault(name), int(times)) for name, times in (fault.split("=") for fault in faults))
    return Rules(
        partitions=tuple(map(int, events)), faults=budget, without=frozenset(without), only_silent="silent" in words
    )


def report(words: str, found: Explored) -> str:
    end = "" if found.is_complete or found.counterexample else ", and there are more"
    counts = f"{found.states:,} states{end}, {found.steps:,} steps, {found.good_ends:,} good ends"
    lines = [f"{words}: {counts}, {found.seconds:.1f} s"]
    if found.counterexample is not None:
        lines += [f"{number:4} {step}" for number, step in enumerate(found.counterexample.trace, 1)]
        lines += [f"     {found.counterexample.found}"]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """1: a counterexample was printed, the shortest there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    guards = [str(guard) for guard in Guard]
    parser.add_argument(
        "--without", action="append", default=[], choices=guards, metavar="GUARD", help=", ".join(guards)
    )
    parser.add_argument("--bounds", choices=sorted(SPACES), default="test")
    parser.add_argument("--space", action="append", metavar='"010 crash=1"', help="events by stream partition, faults")
    parser.add_argument("--states", type=int, default=10**9, help="at most so many of each space")
    arguments = parser.parse_args(words)
    total, seconds = 0, 0.0
    for name in arguments.space or SPACES[arguments.bounds]:
        found = explore(space(name, map(Guard, arguments.without)), arguments.states)
        total, seconds = total + found.states, seconds + found.seconds
        print(report(name, found), flush=True)
        if found.counterexample is not None:
            return 1
    print(f"{total:,} states in {seconds:.0f} s, every end is good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
