"""Every call that changes something outside lies in a named step, so that a test can kill a process there."""

import ast
from collections.abc import Iterator
from pathlib import Path

import cdc_pipeline
import snapshot

EFFECTS = frozenset(
    {
        "collect",
        "confirm",
        "copy_expert",
        "delete",
        "parquet",
        "put_file_if_absent",
        "put_if_absent",
        "send_feedback",
        "send_mark",
        "start_replication_expert",
    }
)
"""Methods of object stores, streams, cursors and Spark that reach outside, whoever calls them."""
IMPLEMENTATIONS = {
    "cdc_pipeline/lake/claim_merge.py": "called inside lake_claim.fold, and reads only",
    "cdc_pipeline/lake/claim_view.py": "called inside lake_claim.fold, and reads only",
    "cdc_pipeline/lake/comparison.py": "called inside lake_table.compare",
    "cdc_pipeline/lake/delta_log.py": "the log that fence.move and snapshot.publish append to",
    "cdc_pipeline/lake/maintenance.py": "called inside lake_table.optimize, lake_table.purge and lake_table.vacuum",
    "cdc_pipeline/sources/postgres_stream.py": "the stream that source.mark and slot.confirm call",
}
"""Where such calls lie outside a step, and why."""
OUTSIDE = ("stack", "cli", "demo", "object_store")


def test_every_call_that_changes_something_outside_is_a_named_step() -> None:
    found = {place.split(":")[0] for place in unnamed_effects()}
    unexpected = sorted(place for place in unnamed_effects() if place.split(":")[0] not in IMPLEMENTATIONS)
    assert unexpected == []
    assert found == set(IMPLEMENTATIONS)


def test_a_call_outside_a_step_is_found() -> None:
    source = "def f(store):\n    with step(on_step, 'a.put'):\n        store.put_if_absent(1, 2)\n    store.delete(1)\n"
    assert [call.lineno for call in calls_outside_steps(ast.parse(source))] == [4]


def unnamed_effects() -> Iterator[str]:
    for package in (cdc_pipeline, snapshot):
        root = Path(str(package.__file__)).parent
        for module in sorted(root.rglob("*.py")):
            path = module.relative_to(root)
            if path.parts[0] not in OUTSIDE:
                for call in calls_outside_steps(ast.parse(module.read_text())):
                    yield f"{root.name}/{path}:{call.lineno}"


def calls_outside_steps(node: ast.AST) -> Iterator[ast.Call]:
    if isinstance(node, ast.With) and any(is_step(item.context_expr) for item in node.items):
        return
    if isinstance(node, ast.Call) and is_effect(node.func):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from calls_outside_steps(child)


def is_effect(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and called.attr in EFFECTS and ".read." not in ast.unparse(called)


def is_step(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id == "step"
