"""The calls in a module's source that reach outside, and whether a named step lies around them."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from cdc_pipeline.object_store import ObjectStore

OUTSIDE_MODULES = frozenset(
    {"boto3", "http", "os", "psycopg2", "requests", "shutil", "socket", "subprocess", "tempfile", "urllib"}
)
"""Whatever is called of them by name reaches outside, except INSIDE."""
INSIDE = frozenset(
    {
        "boto3.session.Session",
        "os.environ.get",
        "os.getpid",
        "psycopg2.sql",
        "socket.gethostname",
        "urllib.parse",
    }
)
FILES = frozenset(
    {
        "chmod",
        "hardlink_to",
        "mkdir",
        "rename",
        "rmdir",
        "symlink_to",
        "touch",
        "unlink",
        "write_bytes",
        "write_text",
    }
)
"""Methods of paths; `replace` with one argument, and `open` for writing, too."""
OBJECT_STORE = frozenset(name for name in vars(ObjectStore) if not name.startswith("_")) - {
    "filesystem",
    "spark_url",
    "url",
}
STREAM = frozenset({"confirm", "read", "send_marker"})
STORES = frozenset({"_objects", "_store", "object_store", "objects", "store"})
STREAMS = frozenset({"_stream", "stream"})
BY_LIBRARY = {
    "psycopg2": frozenset(
        {
            "cancel",
            "commit",
            "copy_expert",
            "execute",
            "executemany",
            "read_message",
            "send_feedback",
            "start_replication_expert",
        }
    ),
    "pymysql": frozenset({"connect", "execute", "executemany"}),
    "pymysqlreplication": frozenset({"fetchone"}),
    "pyspark": frozenset(
        {
            "checkpoint",
            "collect",
            "config",
            "create",
            "createOrReplaceTempView",
            "dropTempView",
            "insertInto",
            "interruptTag",
            "load",
            "localCheckpoint",
            "parquet",
            "save",
            "saveAsTable",
            "set",
            "sql",
            "stop",
            "toArrow",
            "toPandas",
            "unset",
        }
    ),
    "sqlalchemy": frozenset({"begin", "connect", "execute", "raw_connection", "scalar", "scalars"}),
}
"""Methods that reach outside in modules that import the library."""
OWNERS = {"set": "conf", "unset": "conf", "config": "client"}
"""Of some methods only those of a session's conf or client."""
STEPS = frozenset({"step", "transaction"})
_NAME = re.compile(r"[a-z_]+\.[a-z_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideCall:
    line: int
    function: str
    called: str


@dataclass(slots=True)
class Module:
    """Names that are bound to modules and their functions, and the libraries that are imported."""

    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: ast.AST) -> "Module":
        module = cls()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    module.names[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module:
                module.names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        return module

    def imports(self, library: str) -> bool:
        return any(name.partition(".")[0] == library for name in self.names.values())

    def resolved(self, called: ast.expr) -> str:
        """`os.link` for whatever it is called here."""
        root, dot, rest = ast.unparse(called).partition(".")
        return self.names.get(root, root) + dot + rest


def calls_outside_steps(source: str) -> list[OutsideCall]:
    tree = ast.parse(source)
    return list(_walk(tree, Module.of(tree), ""))


def step_names(source: str) -> set[str]:
    """Every name that a step, or a transaction, is given in this module, also through a function of its own."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _called_name(node) in {*STEPS, "_change"}:
            words = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            found.update(word for word in words if _NAME.fullmatch(word))
    return found


def _walk(node: ast.AST, module: Module, function: str) -> Iterator[OutsideCall]:
    if isinstance(node, ast.With) and any(_is_step(item.context_expr) for item in node.items):
        return
    if isinstance(node, ast.FunctionDef):
        if _is_given_a_transaction(node, module):
            return
        function = node.name
    if isinstance(node, ast.Call) and _reaches_outside(node, module):
        yield OutsideCall(line=node.lineno, function=function, called=ast.unparse(node.func))
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, module, function)


def _is_step(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Call) and _called_name(expression) in STEPS


def _called_name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _is_given_a_transaction(function: ast.FunctionDef, module: Module) -> bool:
    """SQLAlchemy's connections come from `Database.transaction` alone, which is a step."""
    given = [argument.annotation for argument in (*function.args.args, *function.args.kwonlyargs)]
    return any(word is not None and module.resolved(word) == "sqlalchemy.Connection" for word in given)


def _reaches_outside(call: ast.Call, module: Module) -> bool:
    called = _called(call)
    whole = module.resolved(called)
    if whole.partition(".")[0] in OUTSIDE_MODULES:
        return not any(whole == name or whole.startswith(f"{name}.") for name in INSIDE)
    if not isinstance(called, ast.Attribute):
        return whole == "open" and _writes(call, 1)
    name, owner = called.attr, ast.unparse(called.value).rpartition(".")[2]
    return (
        _changes_a_file(call, name)
        or (name in OBJECT_STORE and owner in STORES)
        or (name in STREAM and owner in STREAMS)
        or (
            owner == OWNERS.get(name, owner)
            and any(module.imports(library) and name in names for library, names in BY_LIBRARY.items())
        )
    )


def _called(call: ast.Call) -> ast.expr:
    """`iter(function, sentinel)` calls the function."""
    is_repeated = ast.unparse(call.func) == "iter" and len(call.args) == 2
    return call.args[0] if is_repeated else call.func


def _changes_a_file(call: ast.Call, name: str) -> bool:
    if name == "replace":
        return len(call.args) == 1 and not call.keywords
    return name in FILES or (name == "open" and _writes(call, 0))


def _writes(call: ast.Call, place: int) -> bool:
    modes = [*call.args[place : place + 1], *(word.value for word in call.keywords if word.arg == "mode")]
    return any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in modes)
