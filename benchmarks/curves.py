"""Lines over a grid as SVG, without any library."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 360, 70, 450, 40, 310
"""Of the picture, and the edges of the grid in it."""
_COLOURS = ("#1b6ca8", "#c2452d", "#3b8c4a", "#8a5fb0", "#b8860b", "#555555", "#0f9d9d")
_HEAD = '<svg xmlns="http://www.w3.org/2000/svg" width="{}" height="{}" font-family="sans-serif" font-size="12">'
_TEXT = '<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}">{}</text>'
_MARKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """`lines`: name -> points. With `logarithmic` both axes are; then all values must be above zero."""

    title: str
    across: str
    upwards: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    logarithmic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Values -> pixels from `begin` to `end`. One that is not logarithmic begins at zero."""

    low: float
    high: float
    begin: int
    end: int
    logarithmic: bool

    def pixel(self, value: float) -> float:
        found = math.log10(value) if self.logarithmic else value
        return self.begin + (found - self.low) / (self.high - self.low) * (self.end - self.begin)

    def marks(self) -> list[float]:
        steps = (self.low + (self.high - self.low) * step / (_MARKS - 1) for step in range(_MARKS))
        return [10**step if self.logarithmic else step for step in steps]


def axis(values: Iterable[float], begin: int, end: int, *, logarithmic: bool) -> Axis:
    found = [math.log10(value) if logarithmic else value for value in values]
    low = min(found) if logarithmic else 0.0
    return Axis(low=low, high=max(*found, low + 1e-9), begin=begin, end=end, logarithmic=logarithmic)


def svg(curve: Curve) -> str:
    """The same curve gives the same text. Raises ValueError for a curve without points."""
    points = [point for line in curve.lines.values() for point in line]
    if not points:
        message = f"{curve.title}: no points to draw"
        raise ValueError(message)
    across = axis((point[0] for point in points), _LEFT, _RIGHT, logarithmic=curve.logarithmic)
    upwards = axis((point[1] for point in points), _BOTTOM, _TOP, logarithmic=curve.logarithmic)
    parts = [_HEAD.format(_WIDTH, _HEIGHT), '<rect width="100%" height="100%" fill="white"/>']
    parts.append(_text(_LEFT, 20, "start", curve.title))
    parts.append(_text(_LEFT, _HEIGHT - 8, "start", f"across: {curve.across}; upwards: {curve.upwards}"))
    for value in upwards.marks():
        y = upwards.pixel(value)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(_text(_LEFT - 6, y + 4, "end", f"{value:,.3g}"))
    parts += [_text(across.pixel(value), _BOTTOM + 18, "middle", f"{value:,.3g}") for value in across.marks()]
    for number, (name, line) in enumerate(curve.lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{across.pixel(x):.1f},{upwards.pixel(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(_RIGHT + 12, _TOP + 10 + 18 * number, "start", name, colour))
    return "\n".join([*parts, "</svg>\n"])


def _text(x: float, y: float, anchor: str, words: str, colour: str = "#222222") -> str:
    return _TEXT.format(x, y, anchor, colour, escape(words))
