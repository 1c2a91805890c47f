"""A checkpoint says what the commits before it say: to this project, and to readers that know nothing of it."""

import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.checkpoint import write_checkpoint
from cdc_pipeline.lake.checkpoint_rows import ROWS, UnknownContent
from cdc_pipeline.lake.delta_log import Action, DeltaLog, file_identity
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import Moment, OnStep, no_step
from tests.support.delta_rows import delta_url

TABLE = "datalake/shop/public/people"
YOUNG, OLD = 2_000, 1_000
START = datetime(2026, 3, 1, tzinfo=UTC)
SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
METADATA = {
    "id": "one",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps(SCHEMA),
    "partitionColumns": [],
    "configuration": {"delta.enableDeletionVectors": "true", "cdc.ä": "ü"},
    "createdTime": 5,
}
PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}


class KilledError(Exception):
    """What ends a process."""


def add(path: str, vector: Action | None = None) -> Action:
    stats = json.dumps({"numRecords": 9, "minValues": {"id": 1}, "maxValues": {"id": 8}, "nullCount": {"id": 0}})
    file = {"path": path, "partitionValues": {}, "size": 7, "modificationTime": 3, "dataChange": True, "stats": stats}
    return {"add": file | ({} if vector is None else {"deletionVector": vector})}


def remove(file: Action, at: int = YOUNG) -> Action:
    kept = {name: file[name] for name in ("path", "deletionVector") if name in file}
    return {"remove": {**kept, "deletionTimestamp": at, "dataChange": True, "extendedFileMetadata": True, "size": 7}}


def vector(number: int) -> Action:
    return {"storageType": "i", "pathOrInlineDv": f"{number:05d}", "sizeInBytes": 4, "cardinality": 1 + number % 3}


def info(at: datetime = START) -> Action:
    return {"commitInfo": {"timestamp": int(at.timestamp() * 1000)}}


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path)


@pytest.fixture
def log(store: LocalObjectStore) -> DeltaLog:
    return DeltaLog(store, TABLE)


def random_commits(seed: int, count: int) -> list[list[Action]]:
    """Files come, get deletion vectors and go; transactions move; metadata changes now and then."""
    chance, files, commits = Random(seed), dict[str, Action](), list[list[Action]]()
    for number in range(count):
        actions: list[Action] = [info()]
        if not number or chance.random() < 0.1:
            actions += [{"metaData": {**METADATA, "name": f"n{number}"}}, {"protocol": PROTOCOL}]
        actions.append({"txn": {"appId": f"app{chance.randrange(3)}", "version": number, "lastUpdated": number}})
        for path in chance.sample(sorted(files), min(len(files), chance.randrange(4))):
            actions.append(remove(files[path], chance.choice((OLD, YOUNG))))
            if chance.random() < 0.6:
                files[path] = add(path, vector(number))["add"]
                actions.insert(chance.randrange(1, len(actions) + 1), {"add": files[path]})
            else:
                del files[path]
        for new in range(chance.randrange(4)):
            path = f"part-{number}-{new}%20x.parquet"
            files[path] = add(path)["add"]
            actions.append({"add": files[path]})
        commits.append(actions)
    return commits


def replayed(commits: list[list[Action]]) -> dict[str, Any]:
    """What the log says after these commits, by PROTOCOL.md's action reconciliation."""
    found: dict[str, Any] = {"add": {}, "remove": {}, "txn": {}}
    for action in (action for commit in commits for action in commit):
        ((kind, content),) = action.items()
        if kind == "txn":
            found["txn"][content["appId"]] = content["version"]
        elif kind in {"add", "remove"}:
            other = "remove" if kind == "add" else "add"
            found[other].pop(file_identity(content), None)
            found[kind][file_identity(content)] = content["path"]
        elif kind == "metaData":
            found["name"] = content["name"]
    return found


def checkpointed(store: LocalObjectStore, log: DeltaLog, version: int) -> dict[str, Any]:
    """What the checkpoint of this version says."""
    rows = pq.read_table(delta_url(store, log.checkpoint_key(version))).to_pylist(maps_as_pydicts="strict")
    assert all(sum(content is not None for content in row.values()) == 1 for row in rows)
    of = {kind: [row[kind] for row in rows if row[kind] is not None] for kind in ROWS.names}
    (metadata,), (protocol,) = of["metaData"], of["protocol"]
    assert (protocol, metadata["configuration"]) == (PROTOCOL, METADATA["configuration"])
    pointer = json.loads(store.get(log.last_checkpoint_key))
    assert (pointer["version"], pointer["size"], pointer["numOfAddFiles"]) == (version, len(rows), len(of["add"]))
    files = {kind: {file_identity(file): file["path"] for file in of[kind]} for kind in ("add", "remove")}
    return files | {"txn": {each["appId"]: each["version"] for each in of["txn"]}, "name": metadata["name"]}


@pytest.mark.parametrize("seed", range(20))
def test_a_checkpoint_over_a_checkpoint_says_what_all_commits_say(
    store: LocalObjectStore, log: DeltaLog, seed: int
) -> None:
    commits = random_commits(seed, 24)
    for number, actions in enumerate(commits):
        log.append(number, actions)
        if number % 7 == 6:
            write_checkpoint(store, log, number, OLD - 1, no_step)
            assert checkpointed(store, log, number) == replayed(commits[: number + 1])
    write_checkpoint(store, log, 23, OLD, no_step)
    expected = replayed(commits)
    young = {
        file_identity(each["remove"])
        for commit in commits
        for each in commit
        if each.get("remove", {}).get("deletionTimestamp") == YOUNG
    }
    expected["remove"] = {file: path for file, path in expected["remove"].items() if file in young}
    assert checkpointed(store, log, 23) == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_checkpoint_over_one_of_another_writer_says_what_all_commits_say(
    store: LocalObjectStore, log: DeltaLog, seed: int
) -> None:
    """A file without a vector has, in the checkpoints of `deltalake`, NULL for the vector and texts inside it."""
    commits = random_commits(seed, 24)
    for number, actions in enumerate(commits):
        log.append(number, actions)
        if number == 12:
            DeltaTable(delta_url(store, TABLE)).create_checkpoint()
    write_checkpoint(store, log, 23, OLD - 1, no_step)
    found = checkpointed(store, log, 23)
    assert found | {"remove": None} == replayed(commits) | {"remove": None}


def test_a_log_cleaned_up_to_a_checkpoint_without_a_name_is_read(store: LocalObjectStore, log: DeltaLog) -> None:
    commits = random_commits(3, 12)
    for number, actions in enumerate(commits):
        log.append(number, actions)
    write_checkpoint(store, log, 4, OLD, no_step)
    named = store.get(log.last_checkpoint_key)
    write_checkpoint(store, log, 8, OLD, no_step)
    store.overwrite(log.last_checkpoint_key, named)
    store.delete_all([f"{log.folder}/{number:020d}.json" for number in range(8)])
    assert log.latest_version() == 11
    assert {file_identity(file) for file in log.active_files(11).values()} == replayed(commits)["add"].keys()


def test_other_readers_open_the_table_from_it_when_the_commits_are_gone(store: LocalObjectStore, log: DeltaLog) -> None:
    commits = random_commits(7, 12)
    for number, actions in enumerate(commits):
        log.append(number, actions)
    before = sorted(DeltaTable(delta_url(store, TABLE)).file_uris())
    write_checkpoint(store, log, 11, OLD, no_step)
    for number in range(12):
        (store.delete if number < 11 else str)(f"{log.folder}/{number:020d}.json")
    table = DeltaTable(delta_url(store, TABLE))
    assert (table.version(), sorted(table.file_uris())) == (11, before)
    assert table.metadata().configuration == METADATA["configuration"]
    assert {file_identity(file) for file in log.active_files(11).values()} == replayed(commits)["add"].keys()


@pytest.mark.parametrize("pointer", [None, b"", b'{"version": 1'])
def test_a_log_that_does_not_name_its_checkpoint_is_still_found(
    store: LocalObjectStore, log: DeltaLog, pointer: bytes | None
) -> None:
    commits = random_commits(1, 9)
    for number, actions in enumerate(commits):
        log.append(number, actions)
    assert (log.checkpoint_before(9), log.latest_version()) == ((-1, []), 8)
    for version in (4, 6):
        write_checkpoint(store, log, version, OLD, no_step)
    store.delete_all([log.last_checkpoint_key, *(f"{log.folder}/{number:020d}.json" for number in range(5))])
    store.put_if_absent(f"{log.folder}/{8:020d}.checkpoint.{1:010d}.{2:010d}.parquet", b"one of two parts")
    if pointer is not None:
        store.overwrite(log.last_checkpoint_key, pointer)
    assert [log.checkpoint_before(version)[0] for version in (3, 5, 8)] == [-1, 4, 6]
    assert log.latest_version() == 8
    assert log.active_files(8).keys() == replayed(commits)["add"].keys()


def test_one_whole_checkpoint_of_a_version_is_read_alone(store: LocalObjectStore, log: DeltaLog) -> None:
    """Others of the version may be whole too, or unfinished."""
    commits = random_commits(1, 9)
    for number, actions in enumerate(commits):
        log.append(number, actions)
    write_checkpoint(store, log, 8, OLD, no_step)
    store.delete_all([log.last_checkpoint_key, *(f"{log.folder}/{number:020d}.json" for number in range(8))])
    for part, parts in ((1, 1), (1, 2), (2, 3)):
        other = f"{log.folder}/{8:020d}.checkpoint.{part:010d}.{parts:010d}.parquet"
        store.put_if_absent(other, store.get(log.checkpoint_key(8)))
    assert log.checkpoint_before(8) == (8, [log.checkpoint_key(8)])


def test_a_checkpoint_of_another_format_is_named(store: LocalObjectStore, log: DeltaLog) -> None:
    store.overwrite(log.last_checkpoint_key, b'{"version": 3, "size": 2, "v2Checkpoint": {"path": "x"}}')
    with pytest.raises(LakeError, match="format V2"):
        log.active_files(4)


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
@pytest.mark.parametrize("name", ["lake_log.checkpoint", "lake_log.name_checkpoint"])
def test_a_process_that_dies_in_between_leaves_a_log_that_reads_the_same(
    store: LocalObjectStore, log: DeltaLog, name: str, moment: Moment
) -> None:
    commits = random_commits(3, 9)
    for number, actions in enumerate(commits):
        log.append(number, actions)
        if number == 4:
            write_checkpoint(store, log, 4, OLD - 1, no_step)
    with pytest.raises(KilledError):
        write_checkpoint(store, log, 7, OLD - 1, killed_at(name, moment))
    assert log.active_files(8).keys() == replayed(commits)["add"].keys()
    write_checkpoint(store, log, 8, OLD - 1, no_step)
    assert checkpointed(store, log, 8) == replayed(commits)


def killed_at(name: str, moment: Moment) -> OnStep:
    def on_step(step: str, at: Moment) -> None:
        if (step, at) == (name, moment):
            raise KilledError

    return on_step


@pytest.mark.parametrize(
    "unknown",
    [
        {"domainMetadata": {"domain": "delta.clustering", "configuration": "{}", "removed": False}},
        {"add": add("x")["add"] | {"baseRowId": 5}},
        {"sidecar": {"path": "x"}},
    ],
)
def test_a_log_with_unknown_content_is_left_to_delta(store: LocalObjectStore, log: DeltaLog, unknown: Action) -> None:
    log.append(0, [info(), {"metaData": METADATA}, {"protocol": PROTOCOL}, unknown])
    with pytest.raises(UnknownContent):
        write_checkpoint(store, log, 0, OLD, no_step)
    assert [found.key for found in store.list_prefix(log.folder)] == [f"{log.folder}/{0:020d}.json"]


def test_a_checkpoint_with_unknown_content_is_left_to_delta(store: LocalObjectStore, log: DeltaLog) -> None:
    log.append(0, [info(), {"metaData": METADATA}, {"protocol": PROTOCOL}])
    write_checkpoint(store, log, 0, OLD, no_step)
    made = pq.read_table(delta_url(store, log.checkpoint_key(0)))
    sidecars = pa.array([{"path": "x"}] + [None] * (made.num_rows - 1))
    pq.write_table(made.append_column("sidecar", sidecars), delta_url(store, log.checkpoint_key(0)))
    log.append(1, [info()])
    with pytest.raises(UnknownContent, match="sidecar"):
        write_checkpoint(store, log, 1, OLD, no_step)


def test_tombstones_of_the_paths_that_newer_commits_name_are_told_apart_by_their_vectors(
    store: LocalObjectStore, log: DeltaLog
) -> None:
    """So are those of a claim that touches the same files again, whose old tombstones stay until they expire."""
    paths = [f"part-{number}.parquet" for number in range(3)]
    metadata = {"metaData": {**METADATA, "name": "n"}}
    commits = [[info(), metadata, {"protocol": PROTOCOL}, *map(add, paths)]]
    for version in range(1, 6):
        before = [None if version == 1 else vector(version - 1)] * 3
        touched = zip(paths, before, strict=True)
        removed = [remove(add(path, old)["add"], OLD if version == 1 else YOUNG) for path, old in touched]
        commits.append([info(), *removed, *(add(path, vector(version)) for path in paths)])
    for version, actions in enumerate(commits):
        log.append(version, actions)
        write_checkpoint(store, log, version, OLD, no_step)
    found = checkpointed(store, log, 5)
    assert found["add"].keys() == replayed(commits)["add"].keys()
    assert {(path, mark) for path, mark in found["remove"]} == {
        file_identity(add(path, vector(version))["add"]) for path in paths for version in range(1, 5)
    }
