"""lake-rows: claims that need the lake's rows, beside claims of whole rows, into a narrow and a wide table.

The updates of all arms leave one text as it is. The slices of one arm lack it, as where PostgreSQL stores a text apart
(TOAST). The table of another arm would keep deleted rows, and that of the last has a history table.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.arms import Arm, Contest, ContestFigures
from benchmarks.bench import Bench, plus
from benchmarks.claim_arms import ClaimWorld, checked, filled_table, our_pipeline
from benchmarks.claims import opened_world
from benchmarks.results import RowFigures
from benchmarks.slice_files import SCHEMA, Flags, Integers, MadeSlice, SliceMaker, claim_work, values_of
from cdc_pipeline.record import ABSENT, Column, TableSchema

WHOLE, PARTIAL, SOFT, HISTORY = "whole rows", "partial rows", "whole rows, soft deletes", "whole rows, with a history"


@dataclass(kw_only=True)
class UnchangedTexts(SliceMaker):
    """`absent`: the updates leave out the text that they do not change."""

    absent: bool

    def values(self, ids: Integers, numbers: Integers, is_new: Flags) -> dict[str, pa.Array]:
        found = values_of(pa.array(ids), pa.array(numbers))
        text = pc.binary_repeat(pc.cast(pa.array(ids - 1), pa.string()), 8)
        more = {column.name: pa.array(ids % 97, pa.int32()) for column in self.schema.columns[len(SCHEMA.columns) :]}
        if self.absent:
            more[ABSENT] = pa.array([None if new else ["note"] for new in is_new], pa.list_(pa.string()))
            text = pc.if_else(pa.array(is_new), text, None)
        return found | more | {"note": text}


def measure(bench: Bench) -> RowFigures:
    sizes = bench.sizes("lake-rows")
    contests, values = [], dict[str, float | None]()
    for columns in (len(SCHEMA.columns), sizes["columns"]):
        with opened_world(bench, sizes["rows"]) as world:
            found = measured(world, with_columns(columns), sizes["changes"])
        contests.append(found)
        values |= {
            f"{columns} columns: {arm} over {WHOLE}": found.ratio(arm, WHOLE) for arm in (PARTIAL, SOFT, HISTORY)
        }
    return RowFigures(contests=tuple(contests), values=plus(values), sizes=sizes)


def with_columns(columns: int) -> TableSchema:
    more = (Column(name=f"number_{number}", type="int4") for number in range(columns - len(SCHEMA.columns)))
    return replace(SCHEMA, columns=(*SCHEMA.columns, *more))


def measured(world: ClaimWorld, schema: TableSchema, changes: int) -> ContestFigures:
    pipeline, seed = our_pipeline(world, {}), world.bench.seed
    makers = {
        absent: UnchangedTexts(
            objects=world.objects,
            rows=world.rows,
            pattern="hot",
            chance=np.random.default_rng(seed),
            schema=schema,
            absent=absent,
        )
        for absent in (False, True)
    }
    made = dict[bool, MadeSlice]()
    tables = {
        WHOLE: filled_table(world, pipeline, "whole", schema=schema),
        PARTIAL: filled_table(world, pipeline, "partial", schema=schema),
        SOFT: filled_table(world, pipeline, "soft", schema=schema, deletes="soft"),
        HISTORY: filled_table(world, pipeline, "history", schema=schema, keeps_history=True),
    }

    def run(name: str) -> int:
        return pipeline.lake.upsert(tables[name], claim_work([made[name == PARTIAL]])).counts.read

    contest = Contest(
        name=f"hot changes, {len(schema.columns)} columns",
        rows=changes,
        arms=tuple(
            Arm(name=name, run=partial(run, name), check=checked(world, table)) for name, table in tables.items()
        ),
        prepare=lambda _: made.update({absent: maker.make(changes) for absent, maker in makers.items()}),
        parameters={"rows": world.rows, "changes": changes, "columns": len(schema.columns)},
        warm_ups=2,
    )
    return world.bench.clockwork.measure(contest)
