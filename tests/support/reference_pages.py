"""Pages of the reference that are written from the code: `python -m tests.support.reference_pages`, or `make docs`."""

import ast
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any

import typer.core
import typer.main

from cdc_pipeline import errors
from cdc_pipeline.cli.application import application
from cdc_pipeline.errors import CdcError
from cdc_pipeline.launcher.project import PROJECT
from cdc_pipeline.metadata_store import states
from cdc_pipeline.metadata_store.inspection.sql_files import sql, view_names
from cdc_pipeline.settings.file import json_schema

_WRITTEN = "This page is written by `make docs` from the code; a test holds it current.\n"
_CHANGED_LATER = """
## Which settings can change later

Change `pipeline.yml`, then restart the consumers; `cdc work`, `cdc apply` and Airflow read the file again by
themselves. Consumers do not start after a change of `deletes` or `partition_by` of a table that had its first snapshot;
all others go on with the old value.

| consumer | how it is restarted |
|---|---|
| of `cdc up` | `cdc down`, then `cdc up`, which does not read a changed file while the processes run |
| in a container | [write the compose file again, and recreate the containers](../how-to/containers.md#change-it) |
| `cdc consume` of your own | end it by SIGTERM or Ctrl-C, then start it again |

The next table names the settings on which a running process, or something that was registered or written, depends. The
places that a pipeline reads and writes (`lake`, `source.url`, `topic`, `path`) change only if their content is moved as
a whole. All other settings can change at any time.

| setting | can change |
|---|---|
| `name`, `source.kind` | never: it would be another pipeline |
| `id`, `partition_by`, `deletes` | until the first snapshot, or when a stale table begins again |
| `exclude_columns` | databases: by a new snapshot, which starts by itself. Events: until the table is in the lake |
| `as_text` of a table | by a new snapshot of the table: `cdc snapshot TABLE` |
| the type of a column in `columns` | never: a changed type is refused. Begin a new pipeline |
| `history` of a table | at any time; it then begins with the rows at the time of the next claim |
| `folder` of change files | once the files in the old folders are read, and none of their rows waits in quarantine;\
 refused while one is read in part |
| `slot`, `publication` | only with `cdc setup-source --begin-again` and a new snapshot of every table. Drop the old\
 slot by `pg_drop_replication_slot`, or the source keeps its log for it until its disk is full |
| `transactions` of Kafka | while all consumers are stopped |
| `driver`, `worker.runs`, `object_store`, and the places `lake`, `metadata_store`, `spark` and `source.url` | then\
 `cdc down` and `cdc up`: processes were started for the old value |
| `stream_partitions` | never: the hash that divides the events depends on it |
| `ordered`, `sequence_by`, `order_by`, `format` of files | never: versions in two orders are not comparable |
"""
_STATES = {
    "v_claim_history": states.ClaimState,
    "v_quarantine": states.QuarantineState,
    "v_slice_history": states.SliceState,
    "v_snapshot_progress": states.SnapshotState,
}
_DURATION = re.compile(r'"PT?(?P<number>\d+)(?P<unit>[SMHD])"')


@cache
def reference_pages() -> dict[str, str]:
    """Path below docs/ -> the page's text."""
    return {
        "reference/settings.md": settings_page(),
        "reference/cli.md": command_line_page(),
        "reference/errors.md": errors_page(),
        "reference/views.md": views_page(),
    }


def settings_page() -> str:
    """One table per section of pipeline.yml, from the JSON Schema that `cdc schema` prints."""
    schema = json_schema()
    sections = {"pipeline.yml": schema, **schema["$defs"]}
    introduction = (
        "# Settings\n\n"
        + _WRITTEN
        + "\nA pipeline is described by one file, `pipeline.yml`. `--config` or `CDC_CONFIG` names it. A variable"
        " of the environment overrides each value: `CDC_SLICE_LENGTH=10s`, `CDC_SOURCE__URL=…`."
        " A `CDC_` variable that is almost the name of a setting (`CDC_SLICE_LENGHT`) is refused; others that name"
        " none are ignored.\n"
    )
    return introduction + _CHANGED_LATER + "".join(_section(name, section) for name, section in sections.items())


def _section(name: str, section: Mapping[str, Any]) -> str:
    rows = "".join(
        f"| `{key}` | {_type(value)} | {_default(key, value, section)} | {_cell(value.get('description', ''))} |\n"
        for key, value in section.get("properties", {}).items()
    )
    described = f"\n{section['description']}\n" if "description" in section else ""
    return f"\n## {name}\n{described}\n| setting | type | default | meaning |\n|---|---|---|---|\n{rows}"


def _type(value: Mapping[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    for several in ("anyOf", "oneOf"):
        if several in value:
            return " or ".join(_type(choice) for choice in value[several])
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}))}"
    return str(value.get("type", "any"))


def _default(key: str, value: Mapping[str, Any], section: Mapping[str, Any]) -> str:
    if key in section.get("required", ()):
        return "required"
    if "$ref" in value or value.get("default") is None:
        return ""
    default = json.dumps(value["default"])
    return f"`{_DURATION.sub(_as_written, default)}`"


def _as_written(found: re.Match[str]) -> str:
    """`"PT1M"` -> `1m`: durations as pipeline.yml has them."""
    return f"{found['number']}{found['unit'].lower()}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def command_line_page() -> str:
    """Every command with its arguments and options."""
    group = typer.main.get_command(application())
    exit_codes = _cell((group.help or "").rpartition("\n\n")[2])
    own = "`cdc --version` prints the version, `cdc --help` the commands, `cdc COMMAND --help` the options of one.\n"
    return f"# Command line\n\n{_WRITTEN}\n{exit_codes}\n\n{own}" + "".join(_commands(group, "cdc"))


def _commands(command: Any, path: str) -> list[str]:
    """`command`: one of typer's, a group or a single one; `path`: the words that call it."""
    context = command.make_context(path, [], resilient_parsing=True)
    if isinstance(command, typer.core.TyperGroup):
        return [page for name in command.list_commands(context) for page in _subcommands(command, context, path, name)]
    rows = "".join(
        f"| `{' '.join(record[0].split())}` | {_cell(record[1])} |\n"
        for parameter in command.params
        if (record := parameter.get_help_record(context)) is not None
    )
    table = f"\n| option | meaning |\n|---|---|\n{rows}" if rows else ""
    usage = " ".join(command.collect_usage_pieces(context))
    help_text = _cell(inspect.cleandoc(command.help or ""))
    if command.hidden:
        help_text = f"Internal: `cdc up` and the compose file run it; `cdc --help` does not list it. {help_text}"
    return [f"\n## {path}\n\n{help_text}\n\n```text\n{path} {usage}\n```\n{table}"]


def _subcommands(group: Any, context: Any, path: str, name: str) -> list[str]:
    return _commands(group.get_command(context, name), f"{path} {name}")


def errors_page() -> str:
    """The tree of errors, and for each its exit code and whether the same call may succeed later."""
    tree = inspect.getdoc(errors) or ""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, CdcError)]
    rows = "".join(
        f"| `{kind.__name__}` | {kind.exit_code} | {'yes' if kind.retryable else 'no'} |"
        f" {'yes' if kind.outage else 'no'} |\n"
        for kind in kinds
    )
    return (
        "# Errors\n\n"
        + _WRITTEN
        + "\nEach message says what was found, what was expected and what to do. No message shows a password.\n"
        + f"\n```text\n{tree[tree.index('CdcError') :]}\n```\n"
        + "\n| error | exit code | a retry can help by itself | a server is away |\n|---|---|---|---|\n"
        + rows
        + "\n## Remedies\n\nWhat the messages of each error ask for; `…` stands for a value.\n"
        + "".join(f"\n**{name}**\n\n{_items(texts)}" for name, texts in sorted(_remedies().items()))
    )


def _items(texts: Iterable[str]) -> str:
    return "".join(f"- {text}\n" for text in sorted(texts))


def _remedies() -> dict[str, set[str]]:
    """Name of an error -> the remedies that the code gives with it."""
    found = defaultdict[str, set[str]](set)
    for folder in ("cdc_pipeline", "snapshot"):
        for path in (PROJECT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assigned = ((node.targets[0], node.value) for node in tree.body if isinstance(node, ast.Assign))
            constants = {target.id: value for target, value in assigned if isinstance(target, ast.Name)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    remedies = (each.value for each in node.keywords if each.arg == "remedy")
                    texts = [
                        _text(constants.get(each.id, each) if isinstance(each, ast.Name) else each) for each in remedies
                    ]
                    if texts and hasattr(errors, node.func.id):
                        found[node.func.id] |= {text for text in texts if text.strip("… ")}
    return found


def _text(value: ast.expr) -> str:
    """A text of the code with `…` for what is known at run time alone."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case _:
            return "…"


def views_page() -> str:
    """What a row of each inspection view is, by the comment of its SQL, and the view's columns."""
    introduction = "Examples, and what the values say: [Inspection views](inspection.md).\n"
    return "# Columns of the views\n\n" + _WRITTEN + "\n" + introduction + "".join(_view(name) for name in view_names())


def _view(name: str) -> str:
    statement = sql(name)
    before, _, _ = statement.partition("CREATE VIEW")
    comment = " ".join(line.removeprefix("-- ") for line in before.splitlines() if line.startswith("-- "))
    columns = "".join(f"- `{column}`\n" for column in view_columns(statement))
    return f"\n## {name}\n\n{comment}\n\n{columns}{_states(_STATES[name]) if name in _STATES else ''}"


def _states(kind: type[StrEnum]) -> str:
    """Each state with the docstring below it: who sets it, and what is durable then."""
    nodes = ast.walk(ast.parse(inspect.getsource(kind)))
    texts = [_text(node.value) for node in nodes if isinstance(node, ast.Expr)]
    rows = "".join(f"| `{state}` | {_cell(text)} |\n" for state, text in zip(kind, texts, strict=True))
    return f"\n| state | meaning |\n|---|---|\n{rows}"


def view_columns(statement: str) -> list[str]:
    """Names in the outermost SELECT list of a `CREATE VIEW`: what lies in parentheses is no column of the view."""
    body = re.sub(r"--.*", "", statement.partition("CREATE VIEW")[2])
    while body != (shallow := re.sub(r"\([^()]*\)", "", body)):
        body = shallow
    items = re.split(r"\bFROM\b", body.partition("SELECT")[2], maxsplit=1)[0]
    return [re.findall(r'(\w+)"?\s*$', item)[0] for item in items.split(",")]


def main() -> None:
    for path, text in reference_pages().items():
        (PROJECT / "docs" / path).write_text(text, encoding="utf-8")
        sys.stdout.write(f"docs/{path}\n")


if __name__ == "__main__":
    main()
