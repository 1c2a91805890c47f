"""A process that has imported what `cdc` imports, and forks for each call of it: who calls waits for no interpreter."""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from cdc_pipeline.cli import main
from cdc_pipeline.cli.application import application

TIMEOUT_SECONDS = 120
IMPORTED_AT_NEED = (
    "alembic.command",
    "cdc_pipeline.operations.apply_tables",
    "cdc_pipeline.metadata_store.upgrade",
    "cdc_pipeline.operations.rebuild",
    "cdc_pipeline.operations.repair",
    "cdc_pipeline.operations.replay",
    "cdc_pipeline.operations.rewind",
    "cdc_pipeline.operations.source_setup",
    "cdc_pipeline.launcher.parts",
    "cdc_pipeline.operations.verification",
    "snapshot.wiring",
)
INPUT, OUTPUT, ERRORS = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOrder:
    """`output` and `errors` are paths of files to write."""

    words: Sequence[str]
    folder: str
    environment: Mapping[str, str]
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class CommandServer:
    process: "subprocess.Popen[str]"

    def call(self, order: CallOrder) -> int:
        """Its exit code; negative when a signal ended it, SIGALRM after TIMEOUT_SECONDS."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asdict(order)) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def started_command_server() -> Iterator[CommandServer]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.command_server"],
        cwd=Path.cwd(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield CommandServer(process)


def serve() -> None:
    """Order by order, until nobody is there to give one."""
    answers = os.fdopen(os.dup(OUTPUT), "w")
    os.dup2(ERRORS, OUTPUT)
    application()
    for name in IMPORTED_AT_NEED:
        import_module(name)
    gc.freeze()
    for line in sys.stdin:
        number = os.fork()
        if number == 0:
            _become(CallOrder(**json.loads(line)))
            main()
            return
        _, status = os.waitpid(number, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def _become(order: CallOrder) -> None:
    signal.alarm(TIMEOUT_SECONDS)
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), INPUT)
    for place, path in ((OUTPUT, order.output), (ERRORS, order.errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), place)
    sys.argv = ["cdc", *order.words]


if __name__ == "__main__":
    serve()
