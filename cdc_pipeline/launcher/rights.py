"""Gives up the rights of root before anything is started: an installation belongs to one unprivileged account."""

import os
import pwd
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import structlog

from cdc_pipeline.launcher.account import Account, create_reachable, may, server_account
from cdc_pipeline.launcher.project import PROJECT

ROOT = 0
MODE, LAKE_MODE = 0o711, 0o750
Say = Callable[[str], None]

log = structlog.get_logger()


def become_owner(home: Path) -> None:
    """When run by root: continues as the owner of `home`. Stays root if `home` is missing or belongs to root."""
    if os.geteuid() != ROOT or not home.exists() or home.stat().st_uid == ROOT:
        return
    owner = home.stat().st_uid
    account = Account(user_id=owner, group_id=_group_of(owner, home))
    unusable = _unusable(account, [home])
    if unusable:
        log.warning("continuing as root", owner=_name(owner), of=str(home), unreachable=_listed(unusable))
        return
    _become(account, home)


def become_account(folders: Sequence[Path], *, reached: Iterable[Path] = (), say: Say) -> None:
    """When run by root: creates missing `folders` for the system account and continues as this account.

    `folders[0]` is the installation's home; if it exists, its owner decides. `reached`: other paths that the account
    needs, in addition to the pipeline's programs. Existing paths keep their owner. If the account cannot use one,
    everything stays with root, and `say` names the path.
    """
    home = folders[0]
    become_owner(home)
    if os.geteuid() != ROOT:
        return
    account = server_account()
    if account is None:
        return
    if home.exists():
        say(f"everything runs as root, the owner of {home}; to change that, give it and the lake to an account")
        return
    old = [folder for folder in folders if folder.exists()]
    parents = [_nearest(folder) for folder in folders]
    unusable = _unusable(account, [*reached, *parents]) + [folder for folder in old if not may(account, "-w", folder)]
    name = _name(account.user_id)
    if unusable:
        say(f"everything runs as root: the account {name} cannot use {_listed(unusable)}; move them to where it can")
        return
    for folder in folders:
        if folder not in old:
            create_reachable(folder.parent)
            folder.mkdir(mode=MODE if folder == home else LAKE_MODE)
            account.take(folder)
    _become(account, home)
    say(f"started as root: everything runs as the account {name}, which owns {home} now")


def _unusable(account: Account, needed: Iterable[Path]) -> list[Path]:
    """Those of `needed`, and of the programs that every process needs, that the account cannot enter, run or read."""
    java = shutil.which("java")
    programs = (Path(sys.executable), Path(sys.base_prefix), Path(sys.prefix), PROJECT, *([Path(java)] if java else []))
    everything = dict.fromkeys((*programs, *needed))
    return [
        path for path in everything if not may(account, "-r" if path.is_file() and path not in programs else "-x", path)
    ]


def _become(account: Account, home: Path) -> None:
    """Changes the user of this process permanently. Processes that it starts have no more rights either."""
    name = _name(account.user_id)
    os.setgroups(os.getgrouplist(name, account.group_id) if name != str(account.user_id) else [])
    os.setgid(account.group_id)
    os.setuid(account.user_id)
    user_home = _home(account.user_id)
    os.environ.update(HOME=user_home if os.access(user_home, os.X_OK) else str(home), USER=name, LOGNAME=name)
    if not os.access(Path.cwd(), os.X_OK):
        os.chdir(home)


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest of its parents that exists."""
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


def _group_of(user_id: int, home: Path) -> int:
    try:
        return pwd.getpwuid(user_id).pw_gid
    except KeyError:
        return home.stat().st_gid


def _listed(paths: Iterable[Path]) -> str:
    return ", ".join(map(str, paths))
