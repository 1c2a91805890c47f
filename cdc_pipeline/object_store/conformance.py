"""Whether a store keeps what the pipeline builds on: of all writers of a key one wins, and all see it at once."""

import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier

from cdc_pipeline.errors import ObjectExists, ObjectMissing, SettingsError
from cdc_pipeline.object_store.protocol import ObjectStore

SCRATCH = "staging-area/.check"
WRITERS = 16
ROUNDS = 4
FILE_BYTES = (8 << 20) + 1
"""More than what goes up in one part."""
Rivals = Callable[[Sequence[str]], Sequence[Sequence[bool]]]
"""Processes that each put every one of these keys with bytes of their own; for each process: which ones it won."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`kept`: whether the store did what the check expects."""

    check: str
    kept: bool
    found: str


def check_store(objects: ObjectStore, rivals: Rivals) -> Iterator[Finding]:
    """One finding per check, as soon as it is known. Everything that was put is deleted again."""
    with scratch(objects) as folder:
        yield _many_threads(objects, folder)
        yield _many_processes(objects, folder, rivals)
        yield _files(objects, folder)
        yield _read_back(objects, folder)
        yield _read_after_write(objects, folder)
        yield _list_after_write(objects, folder)
        yield _gone_after_delete(objects, folder)


def refuse_unless_one_wins(objects: ObjectStore) -> None:
    """The short form: two writers, one key. Raises SettingsError for a store that takes no notice of the condition."""
    with scratch(objects) as folder:
        won = race(objects, f"{folder}/race", [b"one", b"other"])
    if len(won) != 1:
        raise SettingsError(
            f"{objects.url} let {len(won)} of 2 writers of one object win",
            expected="a store where of all puts with If-None-Match exactly one succeeds",
            remedy="run `cdc check-store` on it, and move the lake to a store that passes",
        )


@contextmanager
def scratch(objects: ObjectStore) -> Iterator[str]:
    folder = f"{SCRATCH}-{uuid.uuid4().hex}"
    try:
        yield folder
    finally:
        for found in list(objects.list_prefix(folder)):
            objects.delete(found.key)


def race(objects: ObjectStore, key: str, contents: Sequence[bytes]) -> list[int]:
    """Put all at once, each by a thread of its own; the numbers of those that won."""
    return _winners([partial(objects.put_if_absent, key, content) for content in contents])


def _winners(puts: Sequence[Callable[[], None]]) -> list[int]:
    start = Barrier(len(puts))

    def won(put: Callable[[], None]) -> bool:
        start.wait()
        try:
            put()
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(len(puts)) as threads:
        return [number for number, outcome in enumerate(threads.map(won, puts)) if outcome]


def _many_threads(objects: ObjectStore, folder: str) -> Finding:
    wrong = []
    for number in range(ROUNDS):
        key, contents = f"{folder}/threads/{number}", [bytes([writer]) * 4096 for writer in range(WRITERS)]
        won = race(objects, key, contents)
        if len(won) != 1 or objects.get(key) != contents[won[0]]:
            wrong.append(len(won))
    return _of_rounds("threads race for one object", wrong)


def _many_processes(objects: ObjectStore, folder: str, rivals: Rivals) -> Finding:
    keys = [f"{folder}/processes/{number}" for number in range(8 * ROUNDS)]
    winners = [sum(outcomes) for outcomes in zip(*rivals(keys), strict=True)]
    written = sum(1 for _ in objects.list_prefix(f"{folder}/processes"))
    wrong = [number for number in winners if number != 1]
    return _of_rounds("processes race for one object", wrong + [0] * (len(keys) - written), rounds=len(keys))


def _files(objects: ObjectStore, folder: str) -> Finding:
    key = f"{folder}/file"
    with tempfile.TemporaryDirectory() as local:
        files = [Path(local) / str(number) for number in range(2)]
        for number, file in enumerate(files):
            file.write_bytes(bytes([number]) * FILE_BYTES)
        won = _winners([partial(objects.put_file_if_absent, key, file) for file in files])
    whole = len(won) == 1 and objects.get(key) == bytes([won[0]]) * FILE_BYTES
    return Finding(check="large files race for one object", kept=whole, found=f"{len(won)} of 2 writers won")


def _read_back(objects: ObjectStore, folder: str) -> Finding:
    key = f"{folder}/again"
    objects.put_if_absent(key, b"first")
    again = _winners([partial(objects.put_if_absent, key, b"first")])
    other = _winners([partial(objects.put_if_absent, key, b"other")])
    kept = bool(again) and not other and objects.get(key) == b"first"
    found = f"the same bytes again {'succeed' if again else 'fail'}, other bytes {'succeed' if other else 'fail'}"
    return Finding(check="what was refused is told by its bytes", kept=kept, found=found)


def _read_after_write(objects: ObjectStore, folder: str) -> Finding:
    wrong = []
    for number in range(ROUNDS):
        key, content = f"{folder}/read/{number}", bytes(number)
        missing = _is_missing(objects, key)
        objects.put_if_absent(key, content)
        if not missing or objects.get(key) != content or objects.head(key).size_bytes != number:
            wrong.append(number)
    return _of_rounds("read after write", wrong)


def _list_after_write(objects: ObjectStore, folder: str) -> Finding:
    keys, wrong = [f"{folder}/list/{number}" for number in range(ROUNDS)], []
    for number, key in enumerate(keys, start=1):
        objects.put_if_absent(key, b"listed")
        if [found.key for found in objects.list_prefix(f"{folder}/list")] != keys[:number]:
            wrong.append(number)
    return _of_rounds("list after write, in order", wrong)


def _gone_after_delete(objects: ObjectStore, folder: str) -> Finding:
    key, wrong = f"{folder}/deleted", []
    for number in range(ROUNDS):
        objects.put_if_absent(key, bytes([number]))
        objects.delete(key)
        if not _is_missing(objects, key):
            wrong.append(number)
    return _of_rounds("gone after delete", wrong)


def _is_missing(objects: ObjectStore, key: str) -> bool:
    try:
        objects.head(key)
    except ObjectMissing:
        return True
    return False


def _of_rounds(check: str, wrong: Sequence[int], rounds: int = ROUNDS) -> Finding:
    return Finding(check=check, kept=not wrong, found=f"{rounds - len(wrong)} of {rounds} rounds right")
