"""A race that shows whether one of several writers of an object wins. Only such a store may be written to."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from cdc_pipeline.errors import ObjectExists, SettingsError
from cdc_pipeline.object_store.protocol import ObjectStore

_SCRATCH = "staging-area/.check"
_CONTENTS = (b"one", b"other")


def refuse_unless_one_wins(objects: ObjectStore) -> None:
    """Two threads put one key at the same time. Raises SettingsError when the store ignores the condition."""
    folder = f"{_SCRATCH}-{uuid.uuid4().hex}"
    try:
        winners = _race(objects, f"{folder}/race")
    finally:
        for found in list(objects.list_prefix(folder)):
            objects.delete(found.key)
    if winners != 1:
        raise SettingsError(
            f"{objects.url} let {winners} of {len(_CONTENTS)} writers of one object win",
            expected="a store in which exactly one of several puts with If-None-Match succeeds",
            remedy="move the lake to such a store (docs/how-to/lake-on-s3.md)",
        )


def _race(objects: ObjectStore, key: str) -> int:
    """Returns the number of writers whose put succeeded."""
    start = Barrier(len(_CONTENTS))

    def wins(content: bytes) -> bool:
        start.wait()
        try:
            objects.put_if_absent(key, content)
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(len(_CONTENTS)) as threads:
        return sum(threads.map(wins, _CONTENTS))
