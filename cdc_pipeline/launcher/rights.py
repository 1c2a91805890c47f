"""The rights of root given up before anything is started: an installation belongs to one unprivileged account."""

import os
import pwd
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import structlog

from cdc_pipeline.launcher.account import Account, may, server_account
from cdc_pipeline.launcher.project import PROJECT

ROOT = 0
MODE, LAKE_MODE = 0o711, 0o750
Say = Callable[[str], None]

log = structlog.get_logger()


def become_owner(place: Path) -> None:
    """Root goes on as whoever `place` belongs to; as root where there is no place yet, or it is root's own."""
    if os.geteuid() != ROOT or not place.exists() or place.stat().st_uid == ROOT:
        return
    owner = place.stat().st_uid
    account = Account(user_id=owner, group_id=_group_of(owner, place))
    beyond = _beyond(account, [place])
    if beyond:
        log.warning("goes on as root", owner=_name(owner), of=str(place), who_cannot_reach=_listed(beyond))
        return
    _become(account, place)


def become_account(folders: Sequence[Path], *, reached: Iterable[Path] = (), say: Say) -> None:
    """Root goes on as the system account, and new `folders` are made for it; the first of them decides.

    `reached`: what the account needs beside them and beside our own programs. Whatever was there before keeps its
    owner: where that is in the way, everything stays with root, and `say` tells what it is.
    """
    place = folders[0]
    become_owner(place)
    if os.geteuid() != ROOT:
        return
    account = server_account()
    if account is None:
        return
    if place.exists():
        say(f"everything runs as root, to whom {place} belongs; to end that, give it and the lake to an account")
        return
    old = [folder for folder in folders if folder.exists()]
    parents = [_nearest(folder) for folder in folders]
    beyond = _beyond(account, [*reached, *parents]) + [folder for folder in old if not may(account, "-w", folder)]
    name = _name(account.user_id)
    if beyond:
        say(f"everything runs as root: the account {name} cannot use {_listed(beyond)}; put them where it can")
        return
    for folder in folders:
        if folder not in old:
            folder.mkdir(mode=MODE if folder == place else LAKE_MODE, parents=True)
            account.owns(folder)
    _become(account, place)
    say(f"started as root: everything runs as the account {name}, to whom {place} belongs now")


def _beyond(account: Account, needed: Iterable[Path]) -> list[Path]:
    """What the account cannot enter, run or read, of this and of the programs that every process needs."""
    java = shutil.which("java")
    programs = (Path(sys.executable), Path(sys.base_prefix), Path(sys.prefix), PROJECT, *([Path(java)] if java else []))
    everything = dict.fromkeys((*programs, *needed))
    return [
        path for path in everything if not may(account, "-r" if path.is_file() and path not in programs else "-x", path)
    ]


def _become(account: Account, place: Path) -> None:
    """For good: no process that is started from now on has more rights."""
    name = _name(account.user_id)
    os.setgroups(os.getgrouplist(name, account.group_id) if name != str(account.user_id) else [])
    os.setgid(account.group_id)
    os.setuid(account.user_id)
    home = _home(account.user_id)
    os.environ.update(HOME=home if os.access(home, os.X_OK) else str(place), USER=name, LOGNAME=name)
    if not os.access(Path.cwd(), os.X_OK):
        os.chdir(place)


def _nearest(folder: Path) -> Path:
    """The folder itself, or what there is of the folders above it."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def _home(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_dir
    except KeyError:
        return ""


def _group_of(user_id: int, place: Path) -> int:
    try:
        return pwd.getpwuid(user_id).pw_gid
    except KeyError:
        return place.stat().st_gid


def _listed(paths: Iterable[Path]) -> str:
    return ", ".join(map(str, paths))
