"""Records which pipeline owns a table of the lake, and refuses every other pipeline."""

import json
import sys

from cdc_pipeline.areas import lake_key, owner_key
from cdc_pipeline.errors import ObjectExists, SettingsError
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
        with step(on_step, "lake_owner.get"):
            owner = json.loads(objects.get(key))["pipeline"]
        raise _belongs_to(owner, table, pipeline, objects) from error


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
