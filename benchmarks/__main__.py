"""One run of benchmarks with a verdict for each row of the table.

    python -m benchmarks [--quick] [--set ROW.NAME=NUMBER] [--ours SECTION.NAME=VALUE] [ROWS...]

Without rows: every row of the table that has arms and needs no Airflow, and the decoder. `--ours` adds an arm of this
project with that setting of pipeline.yml. Ends with 1 when an arm failed or did other work than the others; a missed
goal does not.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import structlog
import typer

from benchmarks import (
    catch_up,
    change_files,
    claims,
    consumer,
    decoder,
    freshness,
    idle,
    lake_log,
    lake_rows,
    many_claims,
    memory,
    publishing,
    slice_runs,
    staging,
    streams,
    whole_path,
    year,
)
from benchmarks.bench import Bench, sections_of
from benchmarks.results import PAGE, RESULTS, RowFigures, is_whole, run_facts, write_results
from benchmarks.sizes import ROUNDS, Scale, Setting, parse_setting
from tests.support.command_line import query

log = structlog.get_logger()

ROWS: Mapping[str, Callable[[Bench], RowFigures]] = {
    "B1": consumer.measure,
    "B2": staging.measure,
    "B3": publishing.measure,
    "B4": claims.measure_claims,
    "B5": claims.measure_slope,
    "B6": many_claims.measure,
    "B7": slice_runs.measure_freshness,
    "B8": catch_up.measure,
    "B9": freshness.measure,
    "B10": slice_runs.measure_runs,
    "B11": whole_path.measure,
    "decoder": decoder.measure,
    "files": change_files.measure,
    "lake-log": lake_log.measure,
    "lake-rows": lake_rows.measure,
    "large-transaction": memory.measure_large_transaction,
    "rest": idle.measure,
    "streams": streams.measure,
    "year": year.measure,
}
BY_NAME_ALONE = frozenset({"B7", "B9", "B10", "large-transaction", "rest", "year"})
"""These take long, and B7, B9, B10 and rest start the whole stack with Airflow."""


def run(bench: Bench, rows: Sequence[str]) -> dict[str, RowFigures | str]:
    """A row that fails has its error instead of figures; the others go on."""
    found: dict[str, RowFigures | str] = {}
    for row in rows:
        try:
            found[row] = ROWS[row](bench)
        except Exception as error:  # the one place where a row ends, whatever it met
            log.exception("row failed", row=row)
            found[row] = f"{type(error).__name__}: {error}"[:1_000]
    return found


def main(
    rows: Annotated[list[str] | None, typer.Argument(help=", ".join(ROWS))] = None,
    *,
    quick: Annotated[bool, typer.Option(help="smaller sizes and 3 rounds instead of 5")] = False,
    tiny: Annotated[bool, typer.Option(help="whether it runs at all; its figures mean nothing")] = False,
    size: Annotated[list[str] | None, typer.Option("--set", help="ROW.NAME=NUMBER: another size")] = None,
    ours: Annotated[list[str] | None, typer.Option(help="SECTION.NAME=VALUE: a further arm with that setting")] = None,
    spark: Annotated[str, typer.Option(help="sc://host:port of a driver that runs already")] = "",
    seed: Annotated[int, typer.Option(help="of the made-up changes")] = 1,
    results: Annotated[Path, typer.Option(help="folder of latest.json and history.jsonl")] = RESULTS,
    page: Annotated[bool, typer.Option(help="write docs/reports/performance.md and its curves")] = False,
) -> None:
    """Measure, write latest.json, print the verdict of each row; progress goes to stderr."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    scale: Scale = "tiny" if tiny else "quick" if quick else "full"
    chosen = rows or [row for row in ROWS if row not in BY_NAME_ALONE]
    settings = _checked(chosen, size or [], ours or [])
    began, load = datetime.now(UTC), os.getloadavg()[0]
    with ExitStack() as opened:
        bench = Bench(scale=scale, opened=opened, seed=seed, settings=settings, overrides=ours or [], given_spark=spark)
        found = run(bench, chosen)
        ((postgres,),) = query(bench.postgres.url("postgres"), "SHOW server_version")
    facts = run_facts(
        at=began,
        scale=scale,
        seed=seed,
        rounds=ROUNDS[scale],
        overrides=ours or [],
        postgres=str(postgres),
        load_before=load,
    )
    content = write_results(results, found, facts, page=PAGE if page else None)
    for entry in content["rows"]:
        if entry["id"] in chosen:
            _show(entry)
    raise typer.Exit(0 if is_whole(content, chosen) else 1)


def _checked(rows: Sequence[str], sizes: Sequence[str], ours: Sequence[str]) -> list[Setting]:
    """Raises BadParameter before anything is started."""
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        message = f"unknown rows: {', '.join(unknown)}; expected some of {', '.join(ROWS)}"
        raise typer.BadParameter(message)
    try:
        for text in ours:
            sections_of(text)
        return [parse_setting(text) for text in sizes]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _show(entry: Mapping[str, object]) -> None:
    sys.stdout.write(f"{entry['id']}: {entry.get('reached', '')} {entry.get('error', '')}\n")
    ratios = entry.get("ratios")
    for name, value in ratios.items() if isinstance(ratios, dict) else ():
        sys.stdout.write(f"    {name}: {value:,.3g}\n")
    refused = entry.get("refused")
    for each in refused if isinstance(refused, list) else ():
        sys.stdout.write(f"    no figure: {each}\n")


if __name__ == "__main__":
    typer.run(main)
