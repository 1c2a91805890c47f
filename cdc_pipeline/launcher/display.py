"""Shows an installation's processes to people, for `up`, `down` and `status --processes`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cdc_pipeline.launcher.airflow import ADMINISTRATOR, passwords_file
from cdc_pipeline.launcher.control import OnStates, down, process_states, up
from cdc_pipeline.launcher.rights import Say, become_account
from cdc_pipeline.launcher.supervisor import Condition, ProcessState
from cdc_pipeline.settings import Settings

COLOURS = {
    Condition.WAITING: "dim",
    Condition.STARTING: "yellow",
    Condition.HEALTHY: "green",
    Condition.DONE: "green",
    Condition.LOST: "red",
    Condition.DOWN: "red",
}


def up_command(settings: Settings, *, config: Path, home: Path, console: Console, say: Say) -> None:
    """Starts all processes and returns when they are healthy. `console` and `say` should write to stderr."""
    read = settings.source.folders(settings.folder)
    become_account(
        own_folders(settings, home),
        reached=[config, *(folder for folder in read if folder.exists())],
        say=say,
    )
    with progress(console) as on_states:
        endpoints = up(settings, config=config, home=home, on_states=on_states)
    say(
        f"up: Airflow at {endpoints.airflow_url}, user {ADMINISTRATOR}, password in"
        f" {passwords_file(str(home))}; logs in {home / 'logs'}; stop with `cdc down`"
    )


def own_folders(settings: Settings, home: Path) -> list[Path]:
    """Folders that processes write to. With table patterns they also write beside pipeline.yml."""
    lake = [] if settings.on_s3 else [Path(unquote(urlsplit(settings.lake_url).path))]
    return [home, *lake, *([settings.folder] if settings.include else [])]


def down_command(*, home: Path, console: Console) -> None:
    with console.status("ending the processes of this installation"):
        ended = down(home)
    console.print(f"down: {ended} processes ended" if ended else "down: nothing was running")


def process_documents(home: Path) -> list[dict[str, object]]:
    """One row per process."""
    return [asdict(state) for state in process_states(home)]


@contextmanager
def progress(console: Console) -> Iterator[OnStates]:
    """Yields a function that shows states: in a live table on a terminal, elsewhere as a line per ready process."""
    if not console.is_terminal:
        yield _line_by_line(console)
        return
    with Live(process_table([]), console=console, refresh_per_second=8) as live:
        yield lambda states: live.update(process_table(states))


def _line_by_line(console: Console) -> OnStates:
    shown: set[str] = set()

    def show(states: list[ProcessState]) -> None:
        for state in states:
            if state.is_ready and state.name not in shown:
                shown.add(state.name)
                console.print(f"{state.name}: {state.condition.value}")

    return show


def process_table(states: list[ProcessState]) -> Table:
    table = Table("process", "state", "waits for", "pid", "ends in a row", box=None, pad_edge=False)
    for state in states:
        table.add_row(
            state.name,
            Text(state.condition.value, style=COLOURS[state.condition]),
            "" if state.is_ready else state.waits_for,
            "" if state.pid is None else str(state.pid),
            str(state.failures or ""),
        )
    return table
