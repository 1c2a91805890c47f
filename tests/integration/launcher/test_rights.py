"""Root gives its rights up where an unprivileged account can do the work, and says why where it cannot."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pwd import getpwnam

import pytest

from cdc_pipeline.launcher.account import ACCOUNT_NAME
from cdc_pipeline.launcher.project import PROJECT
from cdc_pipeline.launcher.rights import become_account, become_owner
from tests.support.shop_settings import SHOP

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")
WITH_AN_OPEN_PYTHON = """
    set -e
    closed="$1" keep="$2" folder="$3"; shift 3
    if [ -n "$closed" ]; then
        for path in "$@"; do mkdir -p "$keep$path"; mount --bind "$path" "$keep$path"; done
        mount -t tmpfs -o mode=755 none "$closed"
        for path in "$@"; do mkdir -p "$path"; mount --bind "$keep$path" "$path"; done
    fi
    cd "$folder"
    exec "$PYTHON" -c "$SCRIPT"
"""
"""In mounts of its own: a folder that only root enters is open there, with nothing in it but Python and the project."""
FIRST_AND_LATER = """
import os, subprocess, sys
from pathlib import Path
from cdc_pipeline.cli.context import POSTGRES_ONLY, context_of
from cdc_pipeline.launcher.display import own_folders
from cdc_pipeline.launcher.rights import become_account
if os.fork() == 0:
    context = context_of(None, as_json=False)
    become_account(own_folders(context.settings, context.home), reached=[context.config], say=print)
    with context.opened_pipeline(POSTGRES_ONLY) as pipeline:
        print("store", pipeline.store is not None, flush=True)
    os._exit(0)
assert os.wait()[1] == 0
assert os.geteuid() == 0
subprocess.run([sys.executable, "-m", "cdc_pipeline", "sql", "partitions"], check=True)
"""

WITH_A_CLOSED_MASK = """
import os
from pathlib import Path
from cdc_pipeline.launcher.rights import become_account
os.umask(0o077)
made = [Path("a/b/home").absolute(), Path("c/d/lake").absolute()]
become_account(made, say=print)
for folder in made:
    (folder / "file").touch()
print("wrote as", os.geteuid())
"""


def closed_ancestor(*paths: Path) -> str:
    """The folder that keeps other users from the first of them, if there is one."""
    parents = reversed(paths[0].parents)
    return next((str(path) for path in parents if not path.stat().st_mode & 0o001), "")


@pytest.fixture
def place(home: Path) -> Path:
    """A folder with a pipeline.yml, whose parents everybody may enter."""
    folder = home.parent / "pipeline"
    folder.mkdir(mode=0o755)
    (folder / "pipeline.yml").write_text(SHOP, encoding="utf-8")
    return folder


def everything_in(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if not path.is_symlink():
            yield path


@needs_root
def test_all_that_root_starts_runs_as_the_account_to_whom_everything_that_was_made_belongs(place: Path) -> None:
    ended = run_with_an_open_python(place, FIRST_AND_LATER)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert ended.stdout.startswith(
        f"started as root: everything runs as the account {ACCOUNT_NAME}, which owns {place}"
    )
    assert "store True" in ended.stdout
    (place / "pipeline.yml").unlink()
    owners = {path.stat().st_uid for path in everything_in(place)}
    assert owners == {getpwnam(ACCOUNT_NAME).pw_uid}
    assert (place / ".cdc" / "postgres" / "data").is_dir()
    assert (place / "lake").stat().st_mode & 0o777 == 0o750


@needs_root
def test_the_account_reaches_what_was_made_for_it_whatever_the_mask_of_root(place: Path) -> None:
    ended = run_with_an_open_python(place, WITH_A_CLOSED_MASK)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert f"wrote as {getpwnam(ACCOUNT_NAME).pw_uid}" in ended.stdout
    assert (place / "a").stat().st_mode & 0o777 == 0o711


def run_with_an_open_python(place: Path, script: str) -> "subprocess.CompletedProcess[str]":
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("needs to mount")
    programs = [Path(sys.base_prefix), PROJECT]
    closed = closed_ancestor(*programs)
    keep = place.parent / "keep"
    keep.mkdir()
    inside = [str(path) for path in programs if closed and path.is_relative_to(closed)]
    command = ["unshare", "--mount", "sh", "-c", WITH_AN_OPEN_PYTHON, "sh", closed, str(keep), str(place), *inside]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CDC_", "TMPDIR"))}
    return subprocess.run(
        command,
        env=environment | {"PYTHON": sys.executable, "SCRIPT": script, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )


@needs_root
def test_what_the_account_cannot_reach_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    said: list[str] = []
    become_account([closed / "home"], say=said.append)
    assert os.geteuid() == 0
    (words,) = said
    assert words.startswith("everything runs as root: the account cdc cannot use")
    assert str(closed) in words
    assert not (closed / "home").exists()


@needs_root
def test_an_installation_that_belongs_to_root_stays_with_root(home: Path) -> None:
    home.mkdir()
    said: list[str] = []
    become_account([home], say=said.append)
    become_owner(home)
    assert os.geteuid() == 0
    assert home.stat().st_uid == 0
    assert str(home) in said[0]


@needs_root
def test_up_names_the_whole_state_folder_whatever_brackets_it_has(place: Path) -> None:
    """It belongs to root, which is said first. Nothing is started, since what the first start stored is damaged."""
    home = place / "[prod]" / "[" / "b]" / ("long " * 20)
    home.mkdir(parents=True)
    (home / "installation.json").write_text("damaged", encoding="utf-8")
    command = [sys.executable, "-m", "cdc_pipeline", "up"]
    environment = os.environ | {"CDC_HOME": str(home), "PYTHONPATH": str(PROJECT)}
    ended = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    first, *others = ended.stderr.splitlines()
    assert first.startswith(f"everything runs as root, the owner of {home}; to change that"), ended.stderr
    assert any("installation.json cannot be read" in line for line in others), ended.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="for everybody else")
def test_whoever_is_not_root_stays_who_they_are_and_nothing_is_made_before_it_is_needed(home: Path) -> None:
    become_account([home], say=pytest.fail)
    assert not home.exists()
