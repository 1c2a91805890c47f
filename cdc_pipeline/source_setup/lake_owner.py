"""Records and reads which pipeline owns a table of the lake, and refuses every other pipeline."""

import json
import sys

from cdc_pipeline.areas import lake_key, owner_key
from cdc_pipeline.errors import ObjectExists, ObjectMissing, SettingsError
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.ledger import read_ledger
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import OnStep, step


def own_lake_table(table: TableName, *, pipeline: str, objects: ObjectStore, on_step: OnStep) -> None:
    """Makes `pipeline` the owner of the table: puts an object with its name beside the table's slices.

    Durable on return, idempotent. A lake of an older version has no such object; there the pipeline's name is read from
    the table's Delta log. Raises SettingsError if another pipeline owns the table.
    """
    published = _published_by(table, objects, on_step)
    if published is not None and published != pipeline:
        raise _belongs_to(published, table, pipeline, objects)
    key = owner_key(table)
    try:
        with step(on_step, "lake_owner.put"):
            objects.put_if_absent(key, json.dumps({"pipeline": pipeline}).encode())
    except ObjectExists as error:
        raise _belongs_to(_recorded(table, objects, on_step), table, pipeline, objects) from error


def owner_of_lake_table(table: TableName, *, objects: ObjectStore, on_step: OnStep) -> str | None:
    """Returns the pipeline that owns the table of the lake; None if the lake names none."""
    try:
        return _recorded(table, objects, on_step)
    except ObjectMissing:
        return _published_by(table, objects, on_step)


def _recorded(table: TableName, objects: ObjectStore, on_step: OnStep) -> str:
    with step(on_step, "lake_owner.get"):
        owner: str = json.loads(objects.get(owner_key(table)))["pipeline"]
    return owner


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
