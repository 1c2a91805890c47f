"""The Spark driver of a benchmark."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.spark import started_spark

URL = "sc://"


@contextmanager
def chosen_driver(words: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """The driver that the first word names, or else one of its own, with the options of `cdc up`; and the numbers."""
    if words and words[0].startswith(URL):
        yield words[0], [int(word) for word in words[1:]]
        return
    with tempfile.TemporaryDirectory() as folder, started_spark(Path(folder), java_options="") as url:
        yield url, [int(word) for word in words]
