"""`include` and `exclude` of pipeline.yml: names with `*` and `?`, and the tables that match them. Pure."""

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from cdc_pipeline.record import TableName

_PARTS = 3
_WILD = frozenset("*?[")


def checked_pattern(pattern: str) -> str:
    """Returns the pattern. Raises ValueError unless it is `db.schema.table` without wildcards in the database."""
    parts = pattern.split(".")
    if len(parts) != _PARTS or not all(parts) or _WILD & set(parts[0]):
        message = f"{pattern!r} is not of the form db.schema.table, with * and ? only in schema and table"
        raise ValueError(message)
    return pattern


def matching(names: Iterable[str], *, include: Collection[str], exclude: Collection[str]) -> tuple[str, ...]:
    """The matching names in alphabetical order. Parts are compared one by one, with letter case."""
    return tuple(sorted(name for name in names if _is_any(name, include) and not _is_any(name, exclude)))


def still_matching(names: Collection[str], include: Iterable[object], settings: Mapping[str, object]) -> list[str]:
    """Returns the names that match now, in their order; `exclude` is in `settings`. Mistakes are left to validation."""
    exclude = settings.get("exclude")
    excluded = [*map(str, exclude)] if isinstance(exclude, list | set) else []
    now = matching(names, include=[*map(str, include)], exclude=excluded)
    return [name for name in names if name in now]


def _is_any(name: str, patterns: Collection[str]) -> bool:
    parts = _parts(name)
    return any(all(map(fnmatchcase, parts, pattern.split("."))) for pattern in patterns)


def _parts(name: str) -> tuple[str, ...]:
    """Returns the parts without quotes, of which one may have a dot. A name that is none is left to validation."""
    try:
        table = TableName.parse(name)
    except ValueError:
        return tuple(name.split("."))
    return table.database, table.schema, table.table
