"""The SQL files of this package: views, named queries, and the role that may read the views."""

from importlib.resources import files

READER_ROLE = "cdc_reader"
_VIEW_PREFIX = "v_"
_ROLE_FILE = "reader"
_FIRST = ("v_withheld", "v_stream_partition", "v_lake_position")
"""Views that other views read; the last of them reads the others."""


def query_names() -> tuple[str, ...]:
    """The names of the queries, sorted."""
    return tuple(name for name in _names() if not name.startswith(_VIEW_PREFIX) and name != _ROLE_FILE)


def view_names() -> tuple[str, ...]:
    """The names of the views, in the order in which they can be created."""
    return (*_FIRST, *(name for name in _names() if name.startswith(_VIEW_PREFIX) and name not in _FIRST))


def sql(name: str) -> str:
    return (files("cdc_pipeline.metadata_store") / "inspection" / f"{name}.sql").read_text(encoding="utf-8")


def views() -> tuple[str, ...]:
    """The statements that create the role, if the user may do that, and every view."""
    return (reader_role(), *(sql(name) for name in view_names()))


def reader_role() -> str:
    """The statement that creates the role, if the user may do that."""
    return sql(_ROLE_FILE)


def _names() -> list[str]:
    folder = files("cdc_pipeline.metadata_store") / "inspection"
    return sorted(entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql"))
