"""The unprivileged account that servers run under when the caller is root."""

import fcntl
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cdc_pipeline.errors import SetupError

ACCOUNT_NAME = "cdc"
ALREADY_THERE = 9
ENTERED = 0o711
ROOT_STATE_FOLDER = Path("/var/lib/cdc-pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    user_id: int
    group_id: int

    def take(self, folder: Path) -> None:
        """Makes the account the owner of one file or folder, not of its parents."""
        os.chown(folder, self.user_id, self.group_id)


def create_reachable(folder: Path) -> None:
    """Creates the folder and its missing parents. Every account may enter them, whatever the umask of this process."""
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir(mode=0o755, exist_ok=True)
            path.chmod(path.stat().st_mode | ENTERED)


def server_account() -> Account | None:
    """None if this process is unprivileged. As root: the system account `cdc`, which is created if it is missing."""
    if os.geteuid() != 0:
        return None
    entry = _find_account()
    if entry is None:
        create_reachable(ROOT_STATE_FOLDER)
        with (ROOT_STATE_FOLDER / "account.lock").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if _find_account() is None:
                _create_account()
        entry = pwd.getpwnam(ACCOUNT_NAME)
    return Account(user_id=entry.pw_uid, group_id=entry.pw_gid)


def _find_account() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(ACCOUNT_NAME)
    except KeyError:
        return None


def _create_account() -> None:
    """The caller holds a lock: of two concurrent `useradd` both may succeed, and the second changes the user id."""
    program = shutil.which("useradd")
    if program is None:
        raise SetupError(
            "PostgreSQL refuses to run as root, and there is no `useradd` to create an account for it",
            remedy=f"create a system account named {ACCOUNT_NAME}, or run this as an ordinary user",
        )
    command = [program, "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", ACCOUNT_NAME]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode not in (0, ALREADY_THERE):
        raise SetupError(
            f"cannot create the system account {ACCOUNT_NAME}: {outcome.stderr.strip()}",
            remedy="create it yourself, or run this as an ordinary user",
        )


def can_reach(account: Account | None, folder: Path) -> bool:
    """Whether the account may enter `folder`. The kernel answers; no mode is changed."""
    return account is None or may(account, "-x", folder)


def may(account: Account, test: str, path: Path) -> bool:
    """Whether `test -r`, `-w` or `-x` succeeds when the account runs it."""
    outcome = subprocess.run(
        ["/usr/bin/env", "test", test, str(path)],
        user=account.user_id,
        group=account.group_id,
        extra_groups=[],
        cwd="/",
        check=False,
    )
    return outcome.returncode == 0
