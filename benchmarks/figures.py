"""Statistics of samples: the one place that turns rounds into figures. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of one arm. Processor seconds and peak memory (of the largest process) by the name of their owner."""

    rows: int
    wall_seconds: float
    processor_seconds: Mapping[str, float]
    peak_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """`deviation`: the median absolute deviation from the median."""

    median: float
    least: float
    most: float
    deviation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigures:
    """What the rounds of one arm took. `rows`: in each round; `walls`: seconds, in the order of the rounds."""

    rounds: int
    rows: int
    rows_per_second: float
    wall_seconds: Spread
    processor_seconds: Spread
    processor_seconds_of: Mapping[str, float]
    peak_bytes: Mapping[str, int]
    walls: tuple[float, ...]

    @property
    def processor_seconds_per_million(self) -> float:
        return self.processor_seconds.median / self.rows * 1e6


def spread_of(values: Sequence[float]) -> Spread:
    """Raises ValueError for no values."""
    if not values:
        message = "no values: a spread needs at least one"
        raise ValueError(message)
    median = statistics.median(values)
    deviation = statistics.median(abs(value - median) for value in values)
    return Spread(median=median, least=min(values), most=max(values), deviation=deviation)


def figures_of(samples: Sequence[Sample]) -> ArmFigures:
    """Of samples that all have the same number of rows."""
    wall = spread_of([sample.wall_seconds for sample in samples])
    owners = sorted({owner for sample in samples for owner in (*sample.processor_seconds, *sample.peak_bytes)})
    return ArmFigures(
        rounds=len(samples),
        rows=samples[0].rows,
        rows_per_second=samples[0].rows / wall.median,
        wall_seconds=wall,
        processor_seconds=spread_of([sum(sample.processor_seconds.values()) for sample in samples]),
        processor_seconds_of={
            owner: statistics.median(sample.processor_seconds.get(owner, 0.0) for sample in samples) for owner in owners
        },
        peak_bytes={owner: max(sample.peak_bytes.get(owner, 0) for sample in samples) for owner in owners},
        walls=tuple(sample.wall_seconds for sample in samples),
    )


def times_as_long(figures: ArmFigures, than: ArmFigures) -> float:
    """Ratio of the median seconds for one row: 2.0 takes twice as long."""
    return than.rows_per_second / figures.rows_per_second


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The exponent of the power law that fits best: 0 for what does not grow, 1 for what grows in proportion.

    Least squares over the logarithms. Raises ValueError for fewer than two sizes.
    """
    if len({size for size, _ in points}) < 2:
        message = f"{len(points)} points: a slope needs two different sizes"
        raise ValueError(message)
    sizes, values = ([math.log(point[place]) for point in points] for place in (0, 1))
    return statistics.linear_regression(sizes, values).slope


def drift(walls: Sequence[float], share: float = 0.1) -> float:
    """The median of the last `share` of the rounds over that of the first."""
    part = max(1, int(len(walls) * share))
    return statistics.median(walls[-part:]) / statistics.median(walls[:part])
