"""What root makes for all installations of a machine: the account of the servers, and a copy of their programs."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cdc_pipeline.launcher.account import ACCOUNT_NAME, Account
from cdc_pipeline.launcher.postgres import reachable_binaries

AT_ONCE = 6
TELL_IT = (
    "import sys; from cdc_pipeline.launcher.account import server_account; sys.stdout.write(f'{server_account()}\\n')"
)
ACCOUNT_FILES = ("passwd", "shadow", "group", "gshadow")
IN_ITS_OWN_ETC = f"""
    set -e
    mount --bind "$1" /etc
    for call in $(seq {AT_ONCE}); do "$2" -c "$3" & done
    wait
"""


def test_whoever_starts_at_once_on_a_new_machine_gets_one_account(tmp_path: Path) -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("needs root, and to mount")
    etc = tmp_path / "etc"
    subprocess.run(["cp", "-a", "/etc", str(etc)], check=True)
    for file in (etc / name for name in ACCOUNT_FILES):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        file.write_text("".join(line for line in lines if not line.startswith(f"{ACCOUNT_NAME}:")), encoding="utf-8")
    command = ["unshare", "--mount", "sh", "-c", IN_ITS_OWN_ETC, "sh", str(etc), sys.executable, TELL_IT]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    accounts = ended.stdout.splitlines()
    assert (len(accounts), len(set(accounts)), ended.stderr) == (AT_ONCE, 1, "")


def test_whoever_copies_the_servers_programs_at_once_gets_the_whole_copy(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    closed, shared, stranger = tmp_path / "closed", tmp_path / "shared", Account(user_id=65534, group_id=65534)
    binaries = closed / "bin"
    binaries.mkdir(parents=True)
    closed.chmod(0o700)
    shared.mkdir()
    program = binaries / "postgres"
    program.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.4'\n", encoding="utf-8")
    program.chmod(0o755)
    for number in range(500):
        (binaries / f"library-{number}").touch()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        calls = [threads.submit(reachable_binaries, binaries, stranger, shared) for _ in range(AT_ONCE)]
        (copy,) = {call.result() for call in calls}
    assert sorted(path.name for path in copy.iterdir()) == sorted(path.name for path in binaries.iterdir())
