"""The account of the servers, made as root on a machine that does not have it yet."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_pipeline.stack.account import ACCOUNT_NAME

AT_ONCE = 6
TELL_IT = (
    "import sys; from cdc_pipeline.stack.account import server_account; sys.stdout.write(f'{server_account()}\\n')"
)
IN_ITS_OWN_ETC = f"""
    mount --bind "$1" /etc
    if getent passwd {ACCOUNT_NAME} >/dev/null; then userdel {ACCOUNT_NAME} 2>/dev/null; fi
    for call in $(seq {AT_ONCE}); do "$2" -c "$3" & done
    wait
"""


def may_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="needs root, and to mount")
def test_whoever_starts_at_once_on_a_new_machine_gets_one_account(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    subprocess.run(["cp", "-a", "/etc", str(etc)], check=True)
    command = ["unshare", "--mount", "sh", "-c", IN_ITS_OWN_ETC, "sh", str(etc), sys.executable, TELL_IT]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    accounts = ended.stdout.splitlines()
    assert (len(accounts), len(set(accounts)), ended.stderr) == (AT_ONCE, 1, "")
