"""pipeline.yml -> settings: reads the file, applies `CDC_` variables, reports each mistake with line and hint."""

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource
from pydantic_settings.exceptions import SettingsError as EnvironmentUnreadable

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.table_patterns import still_matching
from cdc_pipeline.settings.yaml_text import parse_yaml, read_text

DEFAULT_FILE = "pipeline.yml"
KeyPath = tuple[str | int, ...]
_SOURCE, _KIND, _FOLDER = "source", "kind", "folder"
_PREFIX = "cdc_"
_SIMILAR, _MORE_OR_LESS = 0.8, 2
"""A variable is a misspelt key if 0.8 of the two are the same, and their lengths differ by no more than two letters."""


def settings_path(explicit: Path | None, environment: Mapping[str, str]) -> Path:
    """`--config`, else CDC_CONFIG, else pipeline.yml in the working folder; absolute."""
    return (explicit or Path(environment.get("CDC_CONFIG", DEFAULT_FILE))).absolute()


def load_settings(
    path: Path, environment: Mapping[str, str] = os.environ, *, matching: Sequence[str] | None = None
) -> Settings:
    """Raises SettingsError that lists every mistake with its line.

    `matching`: the tables that match the patterns of `include`. Default: those that `cdc setup-source` found last. Pass
    `()` to load the settings before the source is asked for them.
    """
    return parse_settings(read_text(path), path=path, environment=environment, matching=matching)


def parse_settings(
    text: str, *, path: Path, environment: Mapping[str, str], matching: Sequence[str] | None = None
) -> Settings:
    found = parse_yaml(text, path)
    root, document = found.root, found.value
    if not isinstance(document, dict) or root is None:
        raise SettingsError(
            f"{path} holds no settings",
            expected="keys such as name, lake, source and tables",
            remedy="write them, or name another file with --config",
        )
    duplicate = _duplicate_key(root)
    if duplicate is not None:
        raise SettingsError(
            f"{path} line {duplicate[1]}: the key {duplicate[0]!r} occurs twice", remedy="keep one of them"
        )
    named = {str(key): value for key, value in document.items()}
    if _FOLDER in named:
        raise _refused(_unknown_key(_place(path, root, (_FOLDER,)), (_FOLDER,), _known_keys(())))
    overridden = _overlay(named, _environment_values(environment))
    include = overridden.get("include")
    if include and isinstance(include, list | set):
        names = still_matching(_stored_matching(path) if matching is None else matching, include, overridden)
        overridden["tables"] = _with_matching(overridden.get("tables"), list(include), names)
    try:
        return Settings.model_validate(overridden | {_FOLDER: path.parent})
    except ValidationError as error:
        lines = [_wording(path, root, environment, detail) for detail in _causes(error.errors())]
        raise _refused("\n".join(lines)) from None


def _refused(mistakes: str) -> SettingsError:
    return SettingsError(mistakes, remedy="`cdc schema` prints all valid keys")


def matching_path(path: Path) -> Path:
    """Path of the file with the tables that match the patterns of pipeline.yml."""
    return path.with_suffix(".tables.json")


def store_matching(path: Path, names: Sequence[str]) -> None:
    """Stores the names atomically: a concurrent reader gets the old or the new file."""
    stored = matching_path(path)
    unfinished = stored.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(names, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(stored)


def _stored_matching(path: Path) -> list[str]:
    try:
        names = json.loads(read_text(matching_path(path)))
    except (SettingsError, ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SettingsError(
            f"{path} includes tables by pattern, and {matching_path(path).name} does not list them",
            expected="the file that cdc setup-source writes beside it",
            remedy="run cdc setup-source",
        )
    return names


def _with_matching(listed: Any, include: Sequence[object], names: Sequence[str]) -> Any:
    """Adds the names to the listed tables, which keep their settings. Mistakes in the list are left to validation."""
    if listed is not None and not isinstance(listed, list):
        return listed
    tables = list(listed or ())
    known = {_canonical(table.get("name")) for table in tables if isinstance(table, dict)}
    nonexistent = f"{str(include[0]).partition('.')[0]}.include.nothing"
    return [*tables, *({"name": name} for name in names if name not in known)] or [{"name": nonexistent}]


def _canonical(written: object) -> str | None:
    """Returns the name as the source's tables are listed. None for what is no name of a table."""
    try:
        return str(TableName.parse(written)) if isinstance(written, str) else None
    except ValueError:
        return None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of pipeline.yml, for editors."""
    schema = Settings.model_json_schema()
    schema["properties"].pop(_FOLDER, None)
    schema["required"] = [name for name in schema["required"] if name != _FOLDER]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _environment_values(environment: Mapping[str, str]) -> dict[str, Any]:
    _check_names(environment)
    source = EnvSettingsSource(cast(type[BaseSettings], Settings), env_prefix=_PREFIX, env_nested_delimiter="__")
    source.env_vars = {name.lower(): value for name, value in environment.items()}
    try:
        values = source()
    except (EnvironmentUnreadable, ValueError, RecursionError) as error:
        named = str(error).partition(" from source")[0]
        reason = named if isinstance(error, EnvironmentUnreadable) else "too deeply nested, or a number too long"
        raise SettingsError(
            f"a CDC_ variable cannot be read: {reason}",
            expected="JSON for a list or a mapping",
            remedy="correct the variable, or set its parts: CDC_SOURCE__SLOT for source.slot",
        ) from None
    return {name: value for name, value in values.items() if name != _FOLDER}


def _check_names(environment: Mapping[str, str]) -> None:
    """Raises SettingsError for a misspelt key. Other variables that begin with CDC_ may be for other programs."""
    known = _known_keys(())
    for name in environment:
        key = name.lower().removeprefix(_PREFIX).partition("__")[0]
        if not name.lower().startswith(_PREFIX) or key in known:
            continue
        as_long = [other for other in known if abs(len(other) - len(key)) <= _MORE_OR_LESS]
        close = difflib.get_close_matches(key, as_long, n=1, cutoff=_SIMILAR)
        if close:
            raise SettingsError(
                f"the variable {name} sets no key of pipeline.yml; did you mean {(_PREFIX + close[0]).upper()}?",
                remedy="correct its name, or unset it",
            )


def _overlay(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _overlay(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _duplicate_key(node: yaml.Node) -> tuple[str, int] | None:
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                return key.value, key.start_mark.line + 1
            seen.add(key.value)
            children.append(value)
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    return next((found for child in children if (found := _duplicate_key(child)) is not None), None)


def _line_of(root: yaml.Node, key_path: KeyPath) -> int:
    """Line of the innermost node on `key_path` that the file contains."""
    node, line = root, root.start_mark.line + 1
    for part in key_path:
        below: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == part:
                    below, line = value, key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            below = node.value[part]
            line = below.start_mark.line + 1
        if below is None:
            break
        node = below
    return line


def _causes(details: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Leaves out that a list is too short where one of its entries is wrong: validation counts the right ones only."""

    def is_consequence(detail: ErrorDetails) -> bool:
        place = detail["loc"]
        inside = (other["loc"] for other in details if len(other["loc"]) > len(place))
        return detail["type"] == "too_short" and any(other[: len(place)] == place for other in inside)

    return [detail for detail in details if not is_consequence(detail)]


def _place(path: Path, root: yaml.Node, key_path: KeyPath) -> str:
    return f"{path} line {_line_of(root, key_path)}"


def _unknown_key(where: str, key_path: KeyPath, known: Sequence[str]) -> str:
    shown = ".".join(str(part) for part in key_path)
    close = difflib.get_close_matches(str(key_path[-1]), known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(sorted(known))}"
    return f"{where}: the key {shown!r} is unknown; {hint}"


def _wording(path: Path, root: yaml.Node, environment: Mapping[str, str], detail: ErrorDetails) -> str:
    key_path = _written_path(detail["loc"])
    shown = ".".join(str(part) for part in key_path)
    where = _variable(environment, key_path) or _place(path, root, key_path)
    if detail["type"] == "extra_forbidden":
        return _unknown_key(where, key_path, _known_keys(detail["loc"][:-1]))
    if detail["type"] == "missing":
        return f"{where}: {shown!r} is missing; add it"
    if detail["type"] == "union_tag_not_found":
        return f"{where}: '{shown}.{_KIND}' is missing; add it: one of {_kinds()}"
    if detail["type"] == "union_tag_invalid":
        return f"{where}: {shown}.{_KIND}: {detail['ctx']['tag']!r} is not a kind of source; write one of {_kinds()}"
    return f"{where}: {shown or 'settings'}: {_message(detail)}"


def _variable(environment: Mapping[str, str], key_path: KeyPath) -> str | None:
    """Returns the name of the variable that sets this key, or a list around it. None if the file sets it."""
    value: Any = _environment_values(environment)
    for part in key_path:
        if isinstance(value, dict) and part not in value:
            return None
        value = value[part] if isinstance(value, dict) else value
    names = {name.lower(): name for name in environment}
    keys = (_PREFIX + "__".join(map(str, key_path[:depth])) for depth in range(len(key_path), 0, -1))
    return next((f"the variable {names[key.lower()]}" for key in keys if key.lower() in names), None)


def _message(detail: ErrorDetails) -> str:
    value = f"{detail['input']!r:.60}"
    match detail["type"]:
        case "string_pattern_mismatch":
            return f"{value} does not match {detail['ctx']['pattern']}"
        case "int_parsing" | "int_type" | "int_from_float":
            return f"{value} is not a whole number"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "a mapping of keys to values has to stand here"
    return detail["msg"].removeprefix("Value error, ")


def _written_path(key_path: KeyPath) -> KeyPath:
    """The path as the file has it. Validation inserts the kind of source that it tried."""
    inside_source = key_path[:1] == (_SOURCE,) and len(key_path) > 1
    return (key_path[0], *key_path[2:]) if inside_source else key_path


def _kinds() -> str:
    return ", ".join(_source_models())


def _source_models() -> dict[str, type[BaseModel]]:
    """Kind of source, as written in pipeline.yml -> its settings."""
    models = get_args(Settings.model_fields[_SOURCE].annotation)
    return {get_args(model.model_fields[_KIND].annotation)[0]: model for model in models}


def _known_keys(key_path: KeyPath) -> list[str]:
    model: type[BaseModel] = Settings
    for part in key_path:
        if part in _source_models():
            model = _source_models()[str(part)]
        elif isinstance(part, str) and part in model.model_fields:
            below = _model_in(model.model_fields[part].annotation)
            if below is not None:
                model = below
    return [name for name in model.model_fields if name != _FOLDER]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [_model_in(argument) for argument in getattr(annotation, "__args__", ())]
    return next((model for model in inner if model is not None), None)
