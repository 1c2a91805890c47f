"""Follows a changed source table: the lake's table gets the claim's columns in a commit before the claim's own."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import structlog

from cdc_pipeline.errors import CdcError
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.fence import AGAIN, commit_info
from cdc_pipeline.lake.fitting import fitted, taken_over
from cdc_pipeline.lake.new_shape import delta_fields
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable
from cdc_pipeline.lake.reshaping import Reshaper, Reshaping, configuration_of, reshaping_of
from cdc_pipeline.lake.shape import Shape, ShapeChange, shape_of, shape_of_source
from cdc_pipeline.lake.table_features import check_features, has_unknown_features
from cdc_pipeline.record import TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.steps import OnStep, step

logger = structlog.get_logger()

_OPERATION = "CDC SHAPE"


class SchemaConflict(CdcError):
    """The lake cannot follow the new schema. It neither converts values nor changes the id of a table on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A claim's table after the lake has followed its source.

    `table` has id and data partitions under the lake's current names. `version`: the lake version with that shape,
    after which the claim is committed.
    """

    table: LakeTable
    shape: Shape
    version: int


def _is_worth_a_commit(reshaping: Reshaping, log: DeltaLog, read: int, on_step: OnStep) -> bool:
    """Raises LakeError for a table whose features forbid the commit, if the claim cannot do without it.

    It can if only the generation changes: a newer type of the source may have the same type in the lake.
    """
    with step(on_step, "lake_schema.read"):
        if reshaping.change.is_generation_alone and reshaping.is_described and has_unknown_features(log, read):
            return False
        check_features(log, read, "a change of columns")
    return True


def follow(
    reshaper: Reshaper,
    table: LakeTable,
    work: ClaimWork,
    read: int,
    metadata: Action,
    may_commit: Callable[[], None],
    plan: Callable[[Shape], ShapeChange] | None = None,
) -> Fitted:
    """Gives the lake's table the claim's columns, or those of `plan`, in version `read + 1`.

    Makes no commit if it has them, or if the claim can do without it. `read` is the lake version at which the claim's
    fence was read; `metadata` is that version's. The commit is durable on return. Raises SchemaConflict if the lake
    cannot follow, LakeError (retryable) if another writer was first, and LakeError for a table whose features only
    Delta's writer maintains.
    """
    log, on_step = reshaper.log, reshaper.on_step
    plan = plan or partial(planned, table, work)
    reshaping = reshaping_of(metadata, read, plan, vectors=table.deletion_vectors)
    commits = not reshaping.is_none and _is_worth_a_commit(reshaping, log, read, on_step)
    if commits:
        words = reshaping.change.words()
        info = commit_info(
            operation=_OPERATION, user_metadata=json.dumps({"shape": words}), read_version=read, now=reshaper.clock()
        )
        actions = reshaper.actions(table, reshaping)
        may_commit()
        with step(on_step, "lake_schema.commit"):
            log.append(read + 1, [info, *actions])
        logger.info("the lake follows its source", table=str(table.name), lake_version=read + 1, **words)
    after = reshaping.change.after
    version = read + 1 if commits else read
    return Fitted(table=_of_claim(table, work, after, reshaping.partitions), shape=after, version=version)


def latest_shape(log: DeltaLog, table: LakeTable) -> Shape:
    """Returns the shape of the lake's table. If there is none, returns that of the registered columns."""
    latest = log.latest_version()
    if latest is None:
        return shape_of_source(table.schema)
    return shape_at(log, latest)


def shape_at(log: DeltaLog, version: int) -> Shape:
    """Returns the shape of one version of the lake's table."""
    metadata = log.metadata(version)
    return shape_of(delta_fields(metadata), configuration_of(metadata), metadata["partitionColumns"])


def before_next_shape(log: DeltaLog, app_id: str, latest: int) -> int:
    """Returns the last version up to `latest` that has the columns of the last claim up to there.

    A change of columns after that claim belongs to the next claim. Costs one read, and one more for each commit since
    that claim.
    """
    found = latest
    for commit in log.backwards(latest):
        if commit.info.get("operation") == _OPERATION:
            found = commit.version - 1
        elif commit.transaction_version(app_id) is not None and AGAIN not in commit.user_metadata:
            break
    return found


def planned(table: LakeTable, work: ClaimWork, before: Shape) -> ShapeChange:
    """Returns the change that the claim needs. Raises SchemaConflict if the lake cannot follow."""
    others = dict.fromkeys((each.schema, each.late) for each in work.slices if each.schema != work.leading)
    earlier, late = ([schema for schema, is_late in others if is_late == kind] for kind in (False, True))
    # Columns of events have no numbers: the registered schema may be wider than that of the slices which are applied.
    has_numbers = work.leading is None or any(column.number is not None for column in work.leading.columns)
    kept = {"keeps_dropped": table.keeps_dropped, "keeps_wider": table.is_history or not has_numbers}
    change = fitted(before, work.leading, earlier, late, **kept)
    if any(column.number is not None for each in work.slices for column in each.schema.columns):
        return _checked(change, table, "take a new snapshot of the table: cdc snapshot TABLE")
    return _checked(change, table, "read the events again under another name and lake")


def planned_for_snapshot(history: LakeTable, before: Shape, *, is_known: bool) -> ShapeChange:
    """Returns the change that a history needs for the rows of a snapshot. `is_known`: see `taken_over`."""
    kept = history.keeps_dropped
    change = taken_over(before, history.schema, history.source_id, keeps_dropped=kept, is_known=is_known)
    return _checked(change, history, "move the folder of the history away: a new one begins")


def _checked(change: ShapeChange, table: LakeTable, remedy: str) -> ShapeChange:
    if change.problems:
        raise SchemaConflict(
            f"the schema of {table.name} no longer fits its lake table: {'; '.join(change.problems)}",
            expected="the lake's columns with types that hold the lake's values, and new ones beside them",
            remedy=remedy,
        )
    return change


def _of_claim(table: LakeTable, work: ClaimWork, shape: Shape, partitions: tuple[PartitionBy, ...]) -> LakeTable:
    schema = work.leading or work.slices[0].schema
    lake_names = shape.lake_names(schema)
    columns = tuple(
        replace(column, name=lake_names[column.name]) for column in schema.columns if column.name in lake_names
    )
    key = tuple(lake_names[name] for name in schema.key)
    return replace(table, schema=TableSchema(columns=columns, key=key), partition_by=partitions)
