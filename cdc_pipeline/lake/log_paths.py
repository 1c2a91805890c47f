"""The paths of data files in a Delta log, in exactly the form in which Delta writes them.

VACUUM compares them as texts with the names that it lists. If the path of a file has another form in the log, every
reader finds the file, but VACUUM deletes it as unused.
"""

import unicodedata
from urllib.parse import quote, unquote

_PLAIN = "/-_.~!*'(),;:@&=+$"
"""Characters beside letters and digits that Java's URIs have as they are."""
_ESCAPED_CATEGORIES = frozenset({"Cc", "Zl", "Zp", "Zs"})
"""Beyond ASCII, such URIs escape control characters and blanks of all kinds, and nothing else."""


def path_in_log(path: str) -> str:
    """Returns the path in the log of the file at `path` in the table's folder."""
    return quote(path, safe=_PLAIN) if path.isascii() else "".join(map(_as_java_writes, path))


def has_another_form(path: str) -> bool:
    """Returns whether this path of a log is not as Delta writes it, so that VACUUM must not run.

    An earlier version of the pipeline wrote such paths; other writers of Delta tables do.
    """
    return "%" in path and path != path_in_log(unquote(path))


def _as_java_writes(character: str) -> str:
    is_plain = not character.isascii() and unicodedata.category(character) not in _ESCAPED_CATEGORIES
    return character if is_plain else quote(character, safe=_PLAIN)
