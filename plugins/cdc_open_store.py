"""The metadata stores that a triggerer has open. One process runs the triggers of all tables."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from cdc_pipeline.errors import StoreAway

if TYPE_CHECKING:
    from cdc_pipeline.metadata_store.store import MetadataStore

_LOCK = Lock()
_OPEN: "dict[str, tuple[MetadataStore, ExitStack]]" = {}


def metadata_store_url() -> str:
    from cdc_pipeline.wiring import configured_endpoints

    return configured_endpoints().metadata_store_url


@contextmanager
def open_store(pipeline: str, find_url: Callable[[], str] = metadata_store_url) -> "Iterator[MetadataStore]":
    """Yields the pipeline's store, for one operation of one thread. The first call opens it, and later calls share it.

    To read pipeline.yml and to connect costs more than to ask for a run. When the store does not answer, it is closed,
    and the next call opens it at the URL that `find_url` then returns.
    """
    with _LOCK:
        store, leave = _OPEN.get(pipeline) or _OPEN.setdefault(pipeline, _opened(pipeline, find_url()))
    try:
        yield store
    except StoreAway:
        with _LOCK:
            if pipeline in _OPEN and _OPEN[pipeline][0] is store:  # else another thread has closed it
                del _OPEN[pipeline]
        leave.close()
        raise


def _opened(pipeline: str, url: str) -> "tuple[MetadataStore, ExitStack]":
    from cdc_pipeline.metadata_store.store import open_metadata_store

    leave = ExitStack()
    return leave.enter_context(open_metadata_store(url, stream=pipeline)), leave
