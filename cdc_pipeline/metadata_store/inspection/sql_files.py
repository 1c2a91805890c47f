"""The SQL files of this package: views, and the role that may read the views."""

from importlib.resources import files

READER_ROLE = "cdc_reader"
_FIRST = ("v_withheld", "v_stream_partition", "v_lake_position")
"""Views that other views read; the last of them reads the others."""


def view_names() -> tuple[str, ...]:
    """The names of the views, in the order in which they can be created."""
    folder = files("cdc_pipeline.metadata_store") / "inspection"
    names = sorted(entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.startswith("v_"))
    return (*_FIRST, *(name for name in names if name not in _FIRST))


def sql(name: str) -> str:
    return (files("cdc_pipeline.metadata_store") / "inspection" / f"{name}.sql").read_text(encoding="utf-8")


def views() -> tuple[str, ...]:
    """The statements that create every view."""
    return tuple(sql(name) for name in view_names())


def reader_role() -> str:
    """The statement that creates the role, if the user may do that."""
    return sql("reader")
