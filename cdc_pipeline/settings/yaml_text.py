"""Reads YAML files that people write. Errors name the line of a mistake but never show its content.

A line of such a file may contain a password, and an error message may be logged.
"""

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cdc_pipeline.errors import SettingsError

_MOST_BYTES = 4 << 20
_DEEPEST = 50
_MOST_VALUES = 200_000
_LONGEST_VALUE = 4_000
_MOST_DIGITS = 18
_NUMBER = re.compile(r"[-+]?[0-9_]+")
_QUOTED = re.compile(r"(['\"]).*\1", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """`value` is the content; `root` has the line of each value."""

    root: yaml.Node | None
    value: Any


@dataclass(slots=True)
class _Open:
    """A list or mapping that has not ended, with aliases expanded.

    `size`: the number of its values. `height`: how many lists and mappings are in each other, itself included.
    """

    anchor: str | None
    size: int = 1
    height: int = 1


@dataclass(slots=True)
class _Bounds:
    path: Path
    open: list[_Open] = field(default_factory=list)
    ended: dict[str, _Open] = field(default_factory=dict)

    def check(self, event: yaml.Event) -> None:
        """Checks an event before values are built from it. Raises SettingsError for an excessive document."""
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.CollectionStartEvent):
            self.open.append(_Open(event.anchor))
            self._check_depth(0, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._add(self.open.pop(), line)
        elif isinstance(event, yaml.ScalarEvent):
            if len(event.value) > _MOST_DIGITS and event.implicit[0] and _NUMBER.fullmatch(event.value):
                raise _refused(self.path, line, f"has a number with {len(event.value)} digits")
            if len(event.value) > _LONGEST_VALUE:
                raise _refused(self.path, line, f"has a value with {len(event.value)} characters")
            self._add(_Open(event.anchor, height=0), line)
        elif isinstance(event, yaml.AliasEvent):
            if any(each.anchor == event.anchor for each in self.open):
                raise _refused(self.path, line, "has an alias to the value that contains it")
            meant = self.ended.get(event.anchor or "", _Open(None, height=0))
            self._check_depth(meant.height, line)
            self._add(meant, line)

    def _check_depth(self, height: int, line: int) -> None:
        if len(self.open) + height > _DEEPEST:
            raise _refused(self.path, line, f"is nested deeper than {_DEEPEST}")

    def _add(self, value: _Open, line: int) -> None:
        if value.anchor is not None:
            self.ended[value.anchor] = value
        if self.open:
            outer = self.open[-1]
            outer.size += value.size
            outer.height = max(outer.height, value.height + 1)
            if outer.size > _MOST_VALUES:
                raise _refused(self.path, line, f"has more than {_MOST_VALUES} values when aliases are expanded")


def read_text(path: Path) -> str:
    """Returns the text of a file. Never blocks: pipes and the like are refused. Raises SettingsError."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error.strerror or "it cannot be opened") from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise _unreadable(path, "it is not a regular file")
    with os.fdopen(number, "rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise _unreadable(path, f"it is larger than {_MOST_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(
            f"{path} line {line} is not UTF-8: {error.reason}", remedy="save it as UTF-8 text"
        ) from error


def parse_yaml(text: str, path: Path) -> Document:
    """Raises SettingsError for text that is not YAML, or that is larger or deeper than people write."""
    bounds = _Bounds(path)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            bounds.check(event)
        return Document(root=yaml.compose(text, Loader=yaml.SafeLoader), value=yaml.safe_load(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1} column {mark.column + 1}" if mark else ""
        reason = _QUOTED.sub("…", error.problem or error.context or "it cannot be read")
        raise _no_yaml(path, where, reason) from None
    except yaml.reader.ReaderError as error:
        where = f" line {text.count(chr(10), 0, error.position) + 1}"
        raise _no_yaml(path, where, "a character that YAML does not allow") from None
    except (yaml.YAMLError, ValueError, OverflowError, LookupError, AttributeError) as error:
        raise _no_yaml(path, "", f"a value cannot be read: {type(error).__name__}") from None


def _no_yaml(path: Path, where: str, reason: str) -> SettingsError:
    """The cause is not chained, because its message repeats the line."""
    return SettingsError(f"{path}{where} is not YAML: {reason}", remedy="correct that place")


def _refused(path: Path, line: int, reason: str) -> SettingsError:
    return SettingsError(
        f"{path} line {line} {reason}", expected="settings as people write them", remedy="correct that line"
    )


def _unreadable(path: Path, reason: str) -> SettingsError:
    return SettingsError(
        f"cannot read {path}: {reason}",
        expected="the settings of a pipeline",
        remedy="name the file with --config or CDC_CONFIG",
    )
