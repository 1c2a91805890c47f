"""The paths of data files in a Delta log, in exactly the form in which Delta writes them.

VACUUM compares them as texts with the names that it lists: it deletes a file that has another form in the log as if no
version had it, although every reader finds it.
"""

import unicodedata
from collections.abc import Iterable
from urllib.parse import quote, unquote

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.delta_log import DeltaLog

_PLAIN = "/-_.~!*'(),;:@&=+$"
"""Characters beside letters and digits that Java's URIs have as they are."""
_ESCAPED_CATEGORIES = frozenset({"Cc", "Zl", "Zp", "Zs"})
"""Beyond ASCII, such URIs escape control characters and blanks of all kinds, and nothing else."""


def path_in_log(path: str) -> str:
    """Returns the path in the log of the file at `path` in the table's folder."""
    return quote(path, safe=_PLAIN) if path.isascii() else "".join(map(_as_java_writes, path))


def check_names(log: DeltaLog, paths: Iterable[str]) -> None:
    """Raises LakeError if one of these paths of the log has another form, so that VACUUM must not run.

    An earlier version of the pipeline wrote such paths; other writers of Delta tables do.
    """
    others = [path for path in paths if "%" in path and path != path_in_log(unquote(path))]
    if others:
        raise LakeError(
            f"the log in {log.table_key} names {len(others)} files in use in a form that VACUUM does not find,"
            f" such as {min(others)}",
            expected=f"the form in which Delta writes it: {path_in_log(unquote(min(others)))}",
            remedy="do not run VACUUM, which would delete these files; run cdc snapshot on the table, which writes it"
            " into new files",
        )


def _as_java_writes(character: str) -> str:
    is_plain = not character.isascii() and unicodedata.category(character) not in _ESCAPED_CATEGORIES
    return character if is_plain else quote(character, safe=_PLAIN)
