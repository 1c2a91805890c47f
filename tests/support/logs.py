"""Random logs of a source table, as a source could really write them."""

from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from cdc_pipeline.fold.model import Event
from tests.support.lake import event, move

_IDS = range(5)
_LONGEST = 20
_PARTIAL = 0.5


@dataclass(frozen=True, slots=True)
class ChangeLog:
    """`transactions`: the parts that a cut never divides (both halves of a key change are one)."""

    transactions: list[list[Event]]

    @property
    def events(self) -> list[Event]:
        return [each for part in self.transactions for each in part]

    @classmethod
    def drawn(cls, chance: Random) -> "ChangeLog":
        """Inserts only of ids that are free, changes only of ids that live; values are distinct, or None."""
        alive: set[int] = set()
        transactions = []
        for number in range(1, chance.randint(1, _LONGEST)):
            id_ = chance.choice(_IDS)
            if id_ not in alive:
                alive.add(id_)
                transactions.append([event("i", number, id_, **_values(chance, number, whole=True))])
            else:
                transactions.append(_change(chance, number, id_, alive))
        return cls(transactions)

    def cut(self, chance: Random, parts: int) -> list[list[Event]]:
        places = sorted(chance.randint(0, len(self.transactions)) for _ in range(parts - 1))
        bounds = zip([0, *places], [*places, len(self.transactions)], strict=True)
        return [[each for part in self.transactions[low:high] for each in part] for low, high in bounds]


def change_logs() -> st.SearchStrategy[ChangeLog]:
    return st.integers(min_value=0).map(lambda seed: ChangeLog.drawn(Random(seed)))


def _change(chance: Random, number: int, id_: int, alive: set[int]) -> list[Event]:
    free = [other for other in _IDS if other not in alive]
    kind = chance.choices(["update", "delete", "move"], [5, 2, 3 if free else 0])[0]
    if kind == "update":
        return [event("u", number, id_, **_values(chance, number, whole=False))]
    alive.remove(id_)
    if kind == "delete":
        return [event("d", number, id_)]
    new = chance.choice(free)
    alive.add(new)
    return move(number, (id_,), (new,), **_values(chance, number, whole=False))


def _values(chance: Random, number: int, *, whole: bool) -> dict[str, object]:
    values: dict[str, object] = {"a": chance.choice([number, None]), "b": chance.choice([f"b{number}", None])}
    return {name: value for name, value in values.items() if whole or chance.random() > _PARTIAL}
