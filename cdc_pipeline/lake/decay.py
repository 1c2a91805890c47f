"""Which files of a lake table make it slower to read, and which of them one run of maintenance rewrites.

Three things make reading slower: many small files, each of which has to be opened; deleted rows, which are read and
then dropped; and a long log since the last checkpoint. Claims write checkpoints, so this is about the first two.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cdc_pipeline.settings.work import MaintenanceSettings

EVERYTHING = MaintenanceSettings(small_files=2, deleted_share=1e-9, run_bytes=1 << 62)
"""Rewrites all that has decayed at all, in one run."""
_FILES_PER_LOOK = 100_000
PartitionValues = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WornFile:
    """A data file that is small or has deleted rows. `rows` includes the deleted ones; 0 if the log does not say."""

    path: str
    size_bytes: int
    partition: PartitionValues = ()
    rows: int = 0
    deleted_rows: int = 0

    @property
    def deleted_share(self) -> float:
        return self.deleted_rows / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan:
    """What one run rewrites. The files of a group have the same partition values and become few files.

    `left`: the number of files that need it too and wait for the next run.
    """

    groups: tuple[tuple[WornFile, ...], ...] = ()
    left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimization:
    """What one run of maintenance did to the files of a table. Without a change there was no commit.

    `left`: the number of files that wait for the next run. `by_delta`: Delta's OPTIMIZE did it, which gives no counts.
    """

    files_before: int = 0
    files_after: int = 0
    bytes_read: int = 0
    left: int = 0
    by_delta: bool = False

    def __str__(self) -> str:
        if self.by_delta:
            return "small files merged by Delta's OPTIMIZE"
        if not self.files_before:
            return "no file needs it"
        done = f"{self.files_before} files ({self.bytes_read / 1e6:.1f} MB) became {self.files_after}"
        return f"{done}; {self.left} more wait for the next run" if self.left else done


def looks_after(need: MaintenanceSettings, files: int) -> int:
    """Returns after how many versions a run of slices looks for decayed files, in a table of so many files.

    Each claim adds about one small file. For each 100,000 files it looks more rarely, so that the cost per claim stays.
    """
    return need.small_files * (1 + files // _FILES_PER_LOOK)


def rewrite_plan(worn: Iterable[WornFile], need: MaintenanceSettings) -> RewritePlan:
    """Chooses the files to rewrite: first small files, then files by their share of deleted rows.

    Small files of one partition are merged once there are `need.small_files` of them. The smallest come first. A file
    that is larger than all smaller ones together begins another group, so that a file is rewritten again only after
    about as much was added as it holds, or at `need.deleted_share`. Larger files are rewritten one by one at that
    share. The run ends at `need.run_bytes`; its first group has at least the files that it takes to make any progress.
    """
    small, chosen = defaultdict[PartitionValues, list[WornFile]](list), list[tuple[WornFile, ...]]()
    decayed = list[WornFile]()
    for file in worn:
        if file.size_bytes < need.small_file_bytes:
            small[file.partition].append(file)
        elif file.deleted_share >= need.deleted_share:
            decayed.append(file)
    merges = [group for files in small.values() for group in _of_like_size(files, need)]
    merges.sort(key=len, reverse=True)
    decayed.sort(key=lambda file: (-file.deleted_share, file.path))
    wanted = [*merges, *((file,) for file in decayed)]
    room = need.run_bytes
    for group in wanted:
        fitting = _within(group, room)
        if not fitting and not chosen:
            fitting = group[: min(2, len(group))]
        if fitting:
            chosen.append(fitting)
            room -= sum(file.size_bytes for file in fitting)
    return RewritePlan(groups=tuple(chosen), left=sum(map(len, wanted)) - sum(map(len, chosen)))


def _of_like_size(files: Sequence[WornFile], need: MaintenanceSettings) -> list[tuple[WornFile, ...]]:
    """Returns groups of enough files, each with files that are not larger than all smaller ones of it together.

    Without the groups of larger files, those would become more and more: the newest files rarely hold as much as one.
    """
    groups, total = list[list[WornFile]]([[]]), 0
    for file in sorted(files, key=lambda file: (file.size_bytes, file.path)):
        if len(groups[-1]) >= need.small_files and file.size_bytes > total:
            groups.append([])
            total = 0
        groups[-1].append(file)
        total += file.size_bytes
    few = groups.pop() if len(groups[-1]) < need.small_files else []
    if groups:
        groups[0] += (file for file in few if file.deleted_share >= need.deleted_share)
    return [tuple(group) for group in groups]


def _within(group: tuple[WornFile, ...], room: int) -> tuple[WornFile, ...]:
    """Returns the first files of a group that fit. Of several files, one alone is none: it would not become fewer."""
    total = 0
    for number, file in enumerate(group):
        total += file.size_bytes
        if total > room:
            return group[:number] if number > 1 else ()
    return group
