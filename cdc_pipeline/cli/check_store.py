"""`cdc check-store`: whether an object store can hold a lake."""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc_pipeline.cli.context import context_of
from cdc_pipeline.cli.pipeline_commands import Json
from cdc_pipeline.cli.read_commands import CHECK_FAILED
from cdc_pipeline.cli.stack_verbs import Config
from cdc_pipeline.errors import SettingsError

if TYPE_CHECKING:
    from cdc_pipeline.object_store.conformance import Rivals
    from cdc_pipeline.settings import ObjectStoreSettings

_RIVALS = 2


def add_to(app: typer.Typer) -> None:
    app.command(name="check-store")(check_store)


def check_store(
    url: Annotated[str | None, typer.Argument(metavar="[URL]", help="default: the lake of pipeline.yml")] = None,
    config: Config = None,
    endpoint: Annotated[str | None, typer.Option(help="of URL: https://host:port; without one, AWS")] = None,
    region: Annotated[str | None, typer.Option(help="of URL")] = None,
    path_style: Annotated[bool, typer.Option("--path-style", help="of URL: the bucket's name in the path")] = False,
    as_json: Json = False,
) -> None:
    """Race writers for objects, read and list what was written; exit code 3 when the store cannot hold a lake."""
    from cdc_pipeline.object_store.conformance import check_store as check
    from cdc_pipeline.wiring import open_object_store_at

    context = context_of(config, as_json=as_json)
    if url is None:
        place, server = context.settings.lake_url, context.settings.object_store
    else:
        place, server = _place(url), _server(endpoint, region, path_style=path_style)
    objects = open_object_store_at(place, server)
    findings = []
    for finding in check(objects, _rivals(place, server)):
        findings.append(finding)
        if not as_json:
            typer.echo(f"{'ok    ' if finding.kept else 'FAILED'} {finding.check}: {finding.found}")
    if as_json:
        context.show([asdict(finding) for finding in findings])
    raise typer.Exit(0 if all(finding.kept for finding in findings) else CHECK_FAILED)


def _place(url: str) -> str:
    return url.rstrip("/") if "://" in url else Path(url).resolve().as_uri()


def _server(endpoint: str | None, region: str | None, *, path_style: bool) -> "ObjectStoreSettings":
    from pydantic import ValidationError

    from cdc_pipeline.settings import ObjectStoreSettings

    try:
        return ObjectStoreSettings(endpoint=endpoint, region=region, path_style=path_style)
    except ValidationError as error:
        found = "; ".join(detail["msg"].removeprefix("Value error, ") for detail in error.errors())
        raise SettingsError(found, remedy="mend --endpoint or --region") from error


def _rivals(url: str, server: "ObjectStoreSettings") -> "Rivals":
    """Two processes that begin together when both are ready."""

    def race(keys: Sequence[str]) -> list[list[bool]]:
        with ExitStack() as started:
            processes = [started.enter_context(_rival()) for _ in range(_RIVALS)]
            for number, process in enumerate(processes):
                asked = {"url": url, "server": server.model_dump(), "keys": keys, "writer": f"writer {number}"}
                _say(process, json.dumps(asked))
            for process in processes:
                _hear(process)
            for process in processes:
                _say(process, "go")
            return [json.loads(_hear(process)) for process in processes]

    return race


def _rival() -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "cdc_pipeline.cli.rival_writer"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _say(process: "subprocess.Popen[str]", line: str) -> None:
    if process.stdin is not None:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()


def _hear(process: "subprocess.Popen[str]") -> str:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise SettingsError("a rival writer ended", expected="its result", remedy="read what it wrote above")
    return line
