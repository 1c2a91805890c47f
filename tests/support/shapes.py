"""Schemas with the source's numbers, written shortly."""

from cdc_pipeline.record import Column, TableSchema


def columns(*described: str, key: tuple[str, ...] = ("id",)) -> TableSchema:
    """`name type number`, and maybe what rows show that were written before the column was added."""
    parts = [text.split(maxsplit=3) for text in described]
    found = tuple(
        Column(name=name, type=type_, number=int(number), missing=missing[0] if missing else None)
        for name, type_, number, *missing in parts
    )
    return TableSchema(columns=found, key=key)
