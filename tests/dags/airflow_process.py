"""Airflow in processes of its own, so that what it imports, warns of and writes stays away from the tests."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc_pipeline.launcher.project import PROJECT

RESULT = "result: "
_TIE = ("setpriv", "--pdeathsig", "TERM", "--") if shutil.which("setpriv") else ()
"""It ends with the tests, however they end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Airflow:
    """An AIRFLOW_HOME with a migrated SQLite database."""

    environment: Mapping[str, str]

    def call(self, module: str, *arguments: str, **environment: str) -> Any:
        """What the module printed as its result."""
        with self.process(module, *arguments, **environment) as process:
            output, _ = process.communicate()
        results = [line for line in output.splitlines() if line.startswith(RESULT)]
        assert process.returncode == 0, output
        assert len(results) == 1, output
        return json.loads(results[0].removeprefix(RESULT))

    @contextmanager
    def process(self, module: str, *arguments: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
        """A running `python -m tests.dags.<module>`; ended with the block."""
        process = subprocess.Popen(
            [*_TIE, sys.executable, "-m", f"tests.dags.{module}", *arguments],
            env={**os.environ, **self.environment, **environment},
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.terminate()


@dataclass(frozen=True, slots=True)
class DagRuns:
    """A process of `run_dag`: what Airflow builds for its first run, some seconds of work, serves the others too."""

    process: "subprocess.Popen[str]"

    def run(self, dag_id: str, conf: Mapping[str, Any], environment: Mapping[str, str], left_to_others: str) -> Any:
        """What became of the run, and as `output` what was printed meanwhile."""
        found, output = answered(self.process, environment, [dag_id, conf, left_to_others])
        return {**found, "output": output}


@dataclass(frozen=True, slots=True)
class TriggeredRuns:
    """A process of `trigger_runs`."""

    process: "subprocess.Popen[str]"

    def run(self, run_type: str, *dag_ids: str, **environment: str) -> Any:
        return answered(self.process, environment, [run_type, *dag_ids])[0]


def answered(process: "subprocess.Popen[str]", environment: Mapping[str, str], words: Sequence[Any]) -> tuple[Any, str]:
    """What the process reports of a line of `lines`, and what it printed before."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([environment, *words]) + "\n")
    process.stdin.flush()
    output = list[str]()
    for line in process.stdout:
        if line.startswith(RESULT):
            return json.loads(line.removeprefix(RESULT)), "".join(output)
        output.append(line)
    raise AssertionError("".join(output))


def lines() -> Iterator[list[Any]]:
    """The words of each line of the standard input; the line's environment lasts until the next one."""
    own = dict(os.environ)
    for line in sys.stdin:
        environment, *words = json.loads(line)
        os.environ.clear()
        os.environ.update(own | environment)
        yield words


def report(result: Any) -> None:
    """Hand a result over to `Airflow.call` or `answered`."""
    sys.stdout.write(f"{RESULT}{json.dumps(result, default=str)}\n")
    sys.stdout.flush()


def airflow_environment(home: Path) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "PYTHONPATH": str(PROJECT / "plugins"),
    }
