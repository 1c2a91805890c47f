"""Records and reads which pipeline owns a table of the lake, and refuses every other pipeline."""

import json
import sys
from dataclasses import asdict, dataclass

from cdc_pipeline.areas import lake_key, owner_key
from cdc_pipeline.consume.chain_base import order_of
from cdc_pipeline.errors import ObjectExists, ObjectMissing, SettingsError
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.ledger import read_ledger
from cdc_pipeline.metadata_store.ledger.cut import BEGINNING
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import OnStep, step


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOwner:
    """The pipeline that owns a table of the lake. `since`: the chain position from which on cut files name the table.

    Earlier cut files name a table that was removed with its lake. An object of an older version does not say `since`.
    """

    pipeline: str
    since: str = BEGINNING


def own_lake_table(table: TableName, *, pipeline: str, since: str, objects: ObjectStore, on_step: OnStep) -> None:
    """Makes `pipeline` the owner of the table: puts an object with its name beside the table's slices.

    `since`: see `LakeOwner`. An object that is still there keeps its chain position, unless that is later, as when the
    pipeline was removed without its lake and began again.

    Durable on return, idempotent. A lake of an older version has no such object; there the pipeline's name is read from
    the table's Delta log. Raises SettingsError if another pipeline owns the table.
    """
    published = _published_by(table, objects, on_step)
    if published is not None and published != pipeline:
        raise _belongs_to(published, table, pipeline, objects)
    key, content = owner_key(table), json.dumps(asdict(LakeOwner(pipeline=pipeline, since=since))).encode()
    try:
        with step(on_step, "lake_owner.put"):
            objects.put_if_absent(key, content)
    except ObjectExists as error:
        recorded = _recorded(table, objects, on_step)
        if recorded.pipeline != pipeline:
            raise _belongs_to(recorded.pipeline, table, pipeline, objects) from error
        if order_of(since) < order_of(recorded.since):
            with step(on_step, "lake_owner.put"):
                objects.overwrite(key, content)


def owner_of_lake_table(table: TableName, *, objects: ObjectStore, on_step: OnStep) -> LakeOwner | None:
    """Returns None if the lake names no owner of the table."""
    try:
        return _recorded(table, objects, on_step)
    except ObjectMissing:
        published = _published_by(table, objects, on_step)
        return None if published is None else LakeOwner(pipeline=published)


def has_owner_object(table: TableName, *, objects: ObjectStore, on_step: OnStep) -> bool:
    """Whether an object names an owner of the table. The Delta log, which may be half deleted, is not read."""
    try:
        _recorded(table, objects, on_step)
    except ObjectMissing:
        return False
    return True


def _recorded(table: TableName, objects: ObjectStore, on_step: OnStep) -> LakeOwner:
    with step(on_step, "lake_owner.get"):
        return LakeOwner(**json.loads(objects.get(owner_key(table))))


def _published_by(table: TableName, objects: ObjectStore, on_step: OnStep) -> str | None:
    """Returns the pipeline that the newest of our commits names; None for a table that is not published."""
    with step(on_step, "ledger.read"):
        ledger = read_ledger(DeltaLog(objects, lake_key(table)), None, after=sys.maxsize)
    return None if ledger is None or ledger.published is None else ledger.published.stream["name"]


def _belongs_to(owner: str, table: TableName, pipeline: str, objects: ObjectStore) -> SettingsError:
    return SettingsError(
        f"{table} in the lake {objects.url} belongs to the pipeline {owner}",
        expected=f"a lake in which no other pipeline than {pipeline} has a table of this name",
        remedy="give this pipeline another lake in pipeline.yml, or the name of the one that is there",
    )
