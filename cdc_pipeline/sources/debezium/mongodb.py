"""Reads what Debezium's MongoDB connector writes otherwise: documents as JSON texts, and collections."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from cdc_pipeline.sources.debezium.one_line import Undecodable, parsed_json
from cdc_pipeline.time_slice import EPOCH

MONGODB = "mongodb"
_ID = "_id"
_NUMBERS = frozenset({"$numberInt", "$numberLong", "$numberDouble", "$numberDecimal"})

Document = Mapping[str, Any]


def mongodb_value(value: Document) -> Document:
    """Returns the envelope with its documents as rows: one column per field of the document's first level.

    Numbers, times and ids of MongoDB's Extended JSON become plain values. Raises Undecodable for no JSON object.
    """
    source = dict(value["source"])
    source["table"] = source.get("collection")
    rows = {image: _row(value.get(image), image) for image in ("before", "after")}
    return {**value, **rows, "source": source}


def mongodb_key(key: Document | None) -> Document | None:
    """Returns the key `{"id": …}` as the column that the documents call `_id`."""
    if key is None or not isinstance(key.get("id"), str):
        return None
    return {_ID: _plain(parsed_json(key["id"]))}


def _row(text: object, image: str) -> Document | None:
    if text is None:
        return None
    document = parsed_json(text) if isinstance(text, str) else text
    if not isinstance(document, dict):
        raise Undecodable(f"has a document in {image} that is no JSON object")
    return {name: _plain(found) for name, found in document.items()}


def _plain(value: object) -> object:
    """Returns a plain value for a value of Extended JSON; what has no plain form stays as it is, for a json column."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, content),) = value.items()
    if kind == "$oid":
        return content
    if kind in _NUMBERS and isinstance(content, str):
        return parsed_json(content) if content.strip("+-0123456789.eE") == "" else content
    if kind == "$date":
        return _time(_plain(content))
    return value


def _time(content: object) -> object:
    """Returns an ISO time in UTC for milliseconds since 1970; another content stays as it is."""
    if not isinstance(content, int):
        return content
    try:
        return (EPOCH + timedelta(milliseconds=content)).isoformat().replace("+00:00", "Z")
    except OverflowError as error:
        raise Undecodable(f"has the time {content}, which no calendar has") from error
