"""The repository's own lint: house rules that no off-the-shelf tool knows.

Each rule is a function ``check_*(root)`` that returns one line per violation. The first test runs every rule over this
repository; the others plant violations in a small tree and see that the rule finds them.
"""

import ast
import configparser
import fnmatch
import functools
import gc
import io
import os
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 600
MAX_FOLDER_MODULES = 20
MAX_DOCSTRING_LINES = 12  # of prose, before the first section
DOCSTRING_SECTION = re.compile(r"^(Args|Raises|Returns|Yields):$", re.MULTILINE)
RIDDLES = ("That ", "Those ", "What ", "Who ")

SKIPPED = {".git", "target", ".venv", ".ns", ".hypothesis", "build", "dist", "out", "data", "__pycache__"}
SKIPPED_SUFFIXES = ("_cache", ".egg-info")
GENERATED = ("*_pb2.py", "*_pb2_grpc.py")
GENERATED_HANDLES = "*/blocking/generated.py"
"""Of any length; every other rule holds for them, too."""

# What only runtime/ may touch, by the seam that stands for it. A name that ends with a dot means all of that module.
SEAMS = {
    "clock": ("time.", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today",
              "datetime.date.today"),
    "clock of the loop": ("asyncio.sleep",),
    "rng": ("random.", "secrets.", "uuid.uuid1", "uuid.uuid4", "os.urandom", "os.getrandom"),
    "disk": ("open", "io.open", "io.FileIO", "codecs.open", "pathlib.", "os.", "mmap.", "fcntl.", "glob.", "shutil.",
             "tempfile."),
    "tasks": ("asyncio.create_task", "asyncio.ensure_future", "asyncio.to_thread", "threading.Thread",
              "threading.Timer", "concurrent.futures.ThreadPoolExecutor", "concurrent.futures.ProcessPoolExecutor"),
    "process": ("subprocess.", "multiprocessing.", "os._exit", "os.abort", "os.kill", "os.fork", "os.environ",
                "os.getenv"),
    "transport": ("socket.", "asyncio.open_connection", "asyncio.start_server"),
}  # fmt: skip
LOOP_METHODS = {"create_task": "tasks", "run_in_executor": "tasks", "time": "clock of the loop"}
HARMLESS = {
    "os.PathLike", "os.cpu_count", "os.fsdecode", "os.fsencode", "os.fspath", "os.getpid", "os.linesep", "os.path",
    "os.path.abspath", "os.path.basename", "os.path.commonpath", "os.path.dirname", "os.path.isabs", "os.path.join",
    "os.path.normpath", "os.path.relpath", "os.path.split", "os.path.splitext", "os.sep", "os.strerror",
    "pathlib.PurePath", "pathlib.PurePosixPath",
}  # fmt: skip
# Commands and benchmarks, at the edge, use clocks, files and processes directly, but draw and spawn through runtime.
# sim/deterministic is the stand-in for every seam: it has an event loop of its own and touches nothing real.
EDGE = {"clock", "clock of the loop", "disk", "process", "transport"}
ALLOWED_SEAMS = {  # the first match counts
    "sim/deterministic/*": {"clock of the loop", "tasks"},
    "runtime/*": set(SEAMS),
    "cli/*": EDGE,
    "bench/*": EDGE,
    "sim/__main__.py": EDGE,
    "sim/many.py": EDGE,
    "sim/results.py": EDGE,
    "sim/chaos/*": EDGE,  # its processes, network and time are real ones
    "sim/upgrade/*": EDGE,  # likewise
}

# Decisions and encodings: events in, actions out. Their drivers do the waiting.
PURE = ("core/*", "metadata/ledger/model.py", "metadata/codec.py", "*/machine.py", "*/format.py", "*_format.py")
IMPURE_IMPORTS = ("asyncio", "concurrent", "selectors", "threading", "tallybook.runtime")

CLIENTS_OF_GATEWAYS = ("bench/streams/gateway_load.py", "sim/upgrade/mixed_streams.py")
USERS_OF_GRPC = ("runtime/*", *CLIENTS_OF_GATEWAYS)
USERS_OF_MESSAGES = (
    "runtime/grpc/*", "wire/*", "metadata/codec.py", "archive/format/index_codec.py", "bookie/rpc/service.py",
    "client/connection/connection.py", "gateway/*", "bench/profile/span_endpoint.py", *CLIENTS_OF_GATEWAYS,
)  # fmt: skip

# Equipment of tests counts as used when a test imports it; everything else must serve the product.
TEST_EQUIPMENT = ("sim/*", "bench/equipment/zookeeper_server.py")
# Modules that nothing imports, each with the reason why it is not dead.
ENTRY_POINTS: dict[str, str] = {
    **{
        f"bench/archive/{name}.py": "started as a program by bench/archive/__main__.py"
        for name in ("cluster_load", "encoder_load", "offload_load", "spark_load")
    },
    **dict.fromkeys((f"bench/loads/{name}_ledgers.py" for name in ("many", "open")), "a program of its own"),
    "bench/archive/sealed_load.py": "a program of its own",
    "bench/equipment/tied.py": "started as a program by bench/equipment/programs.py",
    "sim/upgrade/zookeeper_nodes.py": "started as a program by sim/upgrade/fixture.py",
    **dict.fromkeys(("client/sync.py", "stream/sync.py"), "for programs without asyncio; ours have it"),
}

# A path begins with what every system has, a server's address, a mount of the containers, or a name that tests make up.
ABSOLUTE_PATH = re.compile(r"(?:^|[^\w./~$})\]*%?<>|-]|://)(/[A-Za-z_][\w.-]*/\S*)")
FAMILIAR_PATHS = re.compile(
    r"/(?:home/ada\b|(?:bin|dev|etc|mnt|opt|proc|srv|sys|tmp|usr|var"
    r"|api|bookies|ledgers|static|streams|tallybook[\w.]*|v1"
    r"|archive|conf|data|journal|security|wheels"
    r"|[abds]|bookie|contract|directory|disk\d|fast|faults|index|moved|nowhere|once|other|path|r1|rocksdb|Who)/)"
)
RELATIVE_PATH = re.compile(r"(?<![\w./])(?:\.\./)+[A-Za-z_][\w.-]*")
NAMES_OF_TESTS = {
    "../README.md", "../docs", "../understand", "../use", "../a", "../archive", "../etc", "../metadata.db",
    "../outside", "../secrets", "../x",
}  # fmt: skip
TASK_MARKERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(: \w+ \w+ \w+)?")


@functools.cache
def top_level_parts() -> frozenset[str]:
    """The top-level folders that hold packages."""
    packages: list[str] = []
    for name in ("setup.cfg", "devtools/setup.cfg"):
        config = configparser.ConfigParser(interpolation=None)
        config.read(ROOT / name)
        packages += config["options"]["packages"].split()
    return frozenset(name.split(".")[1] for name in packages if "." in name)


@dataclass(frozen=True, eq=False)
class Module:
    """A Python file written by hand; ``path`` is relative to the root."""

    path: str
    text: str
    tree: ast.Module

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree."""
        return list(ast.walk(self.tree))

    @property
    def is_product(self) -> bool:
        """Whether it is part of the tallybook package, unlike tests and scripts."""
        return self.path.partition("/")[0] in top_level_parts()

    @property
    def name(self) -> str:
        """The name it is imported by."""
        return "tallybook." + self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @functools.cached_property
    def imports(self) -> list[tuple[ast.AST, str]]:
        """Everything imported, by its full dotted name; ``from a import b`` gives ``a.b``."""
        package = self.name if self.path.endswith("/__init__.py") else self.name.rpartition(".")[0]
        found: list[tuple[ast.AST, str]] = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [(node, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                start = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
                base = ".".join(filter(None, (start, node.module)))
                found += [(node, f"{base}.{alias.name}") for alias in node.names]
        return found

    @functools.cached_property
    def aliases(self) -> dict[str, str]:
        """The object that each imported name stands for."""
        names: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names.update({a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0]
                              for a in node.names})  # fmt: skip
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
        return names

    def dotted(self, node: ast.AST) -> str:
        """The full dotted name that an expression stands for, or an empty string."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""

    def matches(self, *patterns: str) -> bool:
        """Whether the path fits one of ``patterns``."""
        return any(fnmatch.fnmatch(self.path, pattern) for pattern in patterns)

    def at(self, node: ast.AST | int, message: str) -> str:
        """A finding, in the form that editors understand."""
        return f"{self.path}:{node if isinstance(node, int) else getattr(node, 'lineno', 1)}: {message}"


def text_files(root: Path) -> Iterator[tuple[str, str]]:
    """Every text file of the tree, with its path relative to ``root``."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.endswith(SKIPPED_SUFFIXES))
        for file in (Path(folder, name) for name in sorted(names)):
            try:
                yield file.relative_to(root).as_posix(), file.read_text("utf-8")
            except (UnicodeDecodeError, FileNotFoundError):
                continue  # binary, or a scratch file that is gone by now


@functools.lru_cache(maxsize=2)
def modules(root: Path) -> list[Module]:
    """Every Python file that is not generated."""
    found = []
    gc.disable()  # it would walk through all trees again and again
    for path, text in text_files(root):
        is_python = path.endswith(".py") or (path.startswith("scripts/") and text.startswith("#!/usr/bin/env python3"))
        if is_python and not any(fnmatch.fnmatch(path, pattern) for pattern in GENERATED):
            found.append(Module(path, text, ast.parse(text, path)))
    gc.freeze()
    gc.enable()
    return found


def product(root: Path) -> list[Module]:
    """The modules of the tallybook package."""
    return [module for module in modules(root) if module.is_product]


def nodes(module: Module, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of the given kinds."""
    return (node for node in module.nodes if isinstance(node, kinds))


# --- shape ------------------------------------------------------------------------------------------------------------


def check_sizes(root: Path) -> list[str]:
    """Files, functions and folders stay small enough to be read at once."""
    found = []
    folders = Counter(module.path.rpartition("/")[0] for module in product(root) if "__init__" not in module.path)
    for folder, count in folders.items():
        if count > MAX_FOLDER_MODULES:
            found.append(f"{folder}: {count} modules; make a room of some (limit {MAX_FOLDER_MODULES})")
    for module in modules(root):
        lines = module.text.count("\n")
        if lines > MAX_FILE_LINES and not fnmatch.fnmatch(module.path, GENERATED_HANDLES):
            found.append(module.at(1, f"{lines} lines; split the file (limit {MAX_FILE_LINES})"))
        for node in nodes(module, ast.FunctionDef, ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                found.append(module.at(node, f"{node.name} has {lines} lines; split it (limit {MAX_FUNCTION_LINES})"))
    return found


def check_docstrings(root: Path) -> list[str]:
    """Every module says what it is for; a docstring begins with a noun or a verb, and is short."""
    found = [module.at(1, "no module docstring") for module in modules(root) if not ast.get_docstring(module.tree)]
    for module in modules(root):
        for node in (module.tree, *nodes(module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            prose = DOCSTRING_SECTION.split(ast.get_docstring(node) or "")[0].rstrip().splitlines()
            if prose and prose[0].startswith(RIDDLES):
                found.append(module.at(node, f"a docstring begins with {prose[0].split()[0]}"))
            if len(prose) > MAX_DOCSTRING_LINES:
                found.append(module.at(node, f"a docstring has {len(prose)} lines; make a page of docs/ of it"))
    return found


def check_argument_sections(root: Path) -> list[str]:
    """The ``Args:`` of a docstring are parameters of the function, or of the class."""
    found = []
    for module in product(root):
        for node in nodes(module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
            section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
            named = re.findall(r"^    \*{0,2}(\w+):", section[1], re.MULTILINE) if section else []
            there = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)} if named else set()
            there |= {getattr(each.target, "id", "") for each in node.body if isinstance(each, ast.AnnAssign)}
            inherits = getattr(node, "bases", ()) and "__init__" not in {
                getattr(each, "name", "") for each in node.body
            }
            wrong = [] if inherits else [name for name in named if name not in there]
            found += [module.at(node, f"{node.name} has no argument {name}") for name in wrong]
    return found


def check_asserts(root: Path) -> list[str]:
    """``python -O`` strips asserts, so the product uses ``check``."""
    return [
        module.at(node, "assert outside tests; use tallybook.core.errors.check")
        for module in modules(root)
        if not module.path.startswith("tests/")
        for node in nodes(module, ast.Assert)
    ]


def check_excepts(root: Path) -> list[str]:
    """A bare except also catches cancellation and Ctrl-C."""
    return [
        module.at(node, "bare except; name what is expected")
        for module in modules(root)
        for node in nodes(module, ast.ExceptHandler)
        if node.type is None
    ]


def check_task_markers(root: Path) -> list[str]:
    """A TODO says what is missing, and there is only that one kind."""
    found = []
    for module in (each for each in modules(root) if TASK_MARKERS.search(each.text)):
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            marker = TASK_MARKERS.search(token.string) if token.type == tokenize.COMMENT else None
            if marker and (marker[1] != "TODO" or not marker[2]):
                found.append(module.at(token.start[0], f'{marker[1]} without a reason; write "TODO: what and why"'))
    return found


def check_mentions(root: Path) -> list[str]:
    """The repository stands on its own: no file mentions anything outside its tree, or the path of a checkout."""
    return [
        f"{path}:{number}: mentions a path outside the repository"
        for path, text in text_files(root)
        if path != ".gitignore"  # where a slash is the root of the tree
        for number, line in enumerate(text.splitlines(), 1)
        if any(not FAMILIAR_PATHS.match(found) for found in ABSOLUTE_PATH.findall(line))
        or any(
            found not in NAMES_OF_TESTS and not (root / path).parent.joinpath(found).exists()
            for found in RELATIVE_PATH.findall(line)
        )
    ]


# --- seams ------------------------------------------------------------------------------------------------------------


def seam_of(name: str) -> str | None:
    """The seam that stands for ``name``; an entry of its own wins over a whole module."""
    if name in HARMLESS:
        return None
    exact = [seam for seam, names in SEAMS.items() if any(f"{name}.".startswith(f"{n}.") for n in names)]
    whole = [seam for seam, names in SEAMS.items() if any(n.endswith(".") and name.startswith(n) for n in names)]
    return next(iter(exact + whole), None)


def uses_of_seams(module: Module) -> Iterator[tuple[ast.AST, str, str | None]]:
    """Every name that may stand for something a seam covers: the node, the name, the seam."""
    for node, name in module.imports:
        if isinstance(node, ast.ImportFrom):
            yield node, name, seam_of(name)
    for node in nodes(module, ast.Attribute):
        yield node, module.dotted(node), seam_of(module.dotted(node))
        owner = node.value.func if isinstance(node.value, ast.Call) else node.value
        if module.dotted(owner).endswith("loop"):
            yield node, f"loop.{node.attr}", LOOP_METHODS.get(node.attr)
    for node in nodes(module, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "open":
            yield node, "open", seam_of(module.dotted(node.func))


def check_seams(root: Path) -> list[str]:
    """Time, randomness, files, tasks, processes and sockets go through runtime/, so that a simulation sees them all."""
    found: dict[tuple[str, int, str], str] = {}
    for module in product(root):
        allowed = next((seams for pattern, seams in ALLOWED_SEAMS.items() if module.matches(pattern)), set())
        for node, name, seam in uses_of_seams(module):
            if seam and seam not in allowed:
                message = module.at(node, f"{name} is for runtime/ only (seam: {seam})")
                found.setdefault((module.path, node.lineno, seam), message)
    return [message for _, message in sorted(found.items())]


def check_purity(root: Path) -> list[str]:
    """Pure modules neither wait nor start anything."""
    return [
        module.at(node, f"pure module imports {name}")
        for module in product(root)
        if module.matches(*PURE)
        for node, name in module.imports
        if name.startswith(IMPURE_IMPORTS)
    ]


def is_unordered(module: Module, node: ast.AST, names: set[str]) -> bool:
    """Whether an expression is a set of tasks: their order differs from run to run."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Await | ast.Subscript):
        return is_unordered(module, node.value, names)
    if isinstance(node, ast.BinOp):
        return is_unordered(module, node.left, names) or is_unordered(module, node.right, names)
    if isinstance(node, ast.Call):
        called = module.dotted(node.func)
        if called in {"asyncio.wait", "asyncio.all_tasks"}:
            return True
        return called in {"list", "tuple", "iter", "enumerate", "map", "filter", "set"} and any(
            is_unordered(module, argument, names) for argument in node.args
        )
    return False


def check_task_order(root: Path) -> list[str]:
    """Results of ``asyncio.wait`` and ``asyncio.all_tasks`` are sorted before they are iterated."""
    found = set()
    for module in product(root):
        for scope in nodes(module, ast.FunctionDef, ast.AsyncFunctionDef):
            names: set[str] = set()
            for node in ast.walk(scope):
                if isinstance(node, ast.Assign) and is_unordered(module, node.value, names):
                    names |= {name.id for target in node.targets for name in ast.walk(target) if hasattr(name, "id")}
            for node in ast.walk(scope):
                source = None
                if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                    source = node.iter
                elif isinstance(node, ast.Starred) or (isinstance(node, ast.Attribute) and node.attr == "pop"):
                    source = node.value
                if source is not None and is_unordered(module, source, names):
                    found.add(module.at(source, "goes through a set of tasks; sort it, by task name for example"))
    return sorted(found)


# --- imports ----------------------------------------------------------------------------------------------------------


def check_relative_imports(root: Path) -> list[str]:
    """A relative import stays inside its top-level folder."""
    return [
        module.at(node, "relative import leaves the folder; import tallybook.<folder> instead")
        for module in product(root)
        for node in nodes(module, ast.ImportFrom)
        if node.level > module.path.count("/")
    ]


def check_wire_imports(root: Path) -> list[str]:
    """gRPC and generated messages are known to few modules; all others use our own types."""
    found = []
    for module in product(root):
        for node, name in module.imports:
            if name.split(".")[0].startswith("grpc") and not module.matches(*USERS_OF_GRPC):
                found.append(module.at(node, "grpc is used only in runtime/"))
            is_message = any(part.endswith(("_pb2", "_pb2_grpc")) for part in name.split("."))
            if is_message and not module.matches(*USERS_OF_MESSAGES):
                found.append(module.at(node, f"generated messages are used only in {', '.join(USERS_OF_MESSAGES)}"))
    return found


def check_dead_modules(root: Path) -> list[str]:
    """Every module is imported, named in a string (``"tallybook.x.y:attribute"``), or a program."""
    users: dict[str, set[str]] = {}
    for module in modules(root):
        strings = (node.value for node in nodes(module, ast.Constant) if isinstance(node.value, str))
        named = (text.partition(":")[0] for text in strings if text.startswith("tallybook."))
        for name in [*(name for _, name in module.imports), *named]:
            for used in (name, name.rpartition(".")[0]):
                users.setdefault(used, set()).add(module.path)

    found = []
    for module in product(root):
        if module.path.endswith(("/__init__.py", "/__main__.py")) or module.path in ENTRY_POINTS:
            continue
        others = users.get(module.name, set()) - {module.path}
        if not module.matches(*TEST_EQUIPMENT):
            others = {path for path in others if not path.startswith("tests/")}
        if not others:
            found.append(module.at(1, "nothing imports this module; use it, delete it or list it in ENTRY_POINTS"))
    return found


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]

# --- the repository ---------------------------------------------------------------------------------------------------


def test_the_repository_keeps_the_rules():
    found = {check.__doc__: check(ROOT) for check in CHECKS}
    broken = [f"{rule}\n  " + "\n  ".join(lines) for rule, lines in found.items() if lines]
    if broken:
        pytest.fail("\n".join(broken), pytrace=False)


def test_the_rules_see_the_repository():
    assert {"core/__init__.py", "tests/unit/test_tidy.py", "scripts/gen-proto"} <= {m.path for m in modules(ROOT)}
    assert top_level_parts() == {module.path.partition("/")[0] for module in product(ROOT)}


# --- the rules --------------------------------------------------------------------------------------------------------

LONG_FUNCTION = "def f():\n" + "    print()\n" * MAX_FUNCTION_LINES
WAITING = "import asyncio\nasync def f(tasks):\n    done, pending = await asyncio.wait(tasks)\n"

PLANTED = [
    (check_sizes, "core/a.py", LONG_FUNCTION, "f has 71 lines"),
    (check_sizes, "tests/unit/test_a.py", "async " + LONG_FUNCTION, "f has 71 lines"),
    (check_sizes, "core/a.py", "x = 1\n" * 601, "601 lines"),
    (check_docstrings, "core/a.py", "x = 1\n'''late'''\n", "no module docstring"),
    (check_docstrings, "core/a.py", "'''What is left.'''\n", "begins with What"),
    (check_docstrings, "core/a.py", "'''A.\n\n" + "b\n" * 11 + "'''\n", "has 13 lines"),
    (check_argument_sections, "core/a.py", "def f(*b):\n    '''F.\n\n    Args:\n        b: 2\n        c: 3\n    '''\n",
     "f has no argument c"),
    (check_asserts, "core/a.py", "assert True\n", "assert outside tests"),
    (check_excepts, "tests/a.py", "try:\n    pass\nexcept:\n    pass\n", "bare except"),
    (check_task_markers, "core/a.py", "x = 1  # TODO: later\n", "TODO without a reason"),
    (check_task_markers, "core/a.py", "# FIXME: this is all very wrong\n", "FIXME without a reason"),
    (check_mentions, "docs/a.md", "See ../" + "elsewhere/design.md.\n", "outside the repository"),
    (check_mentions, "core/a.py", "# Of `../../" + "notes`.\n", "outside the repository"),
    (check_mentions, "Makefile", "all:\n\tcp /" + "elsewhere/main/x .\n", "outside the repository"),
    (check_mentions, "docs/a.md", "ready sqlite:///" + "home/eve/metadata.db\n", "outside the repository"),
    (check_seams, "client/a.py", "import time\nx = time.time()\n", "time.time is for runtime/ only (seam: clock)"),
    (check_seams, "client/a.py", "from datetime import datetime\ndatetime.now()\n", "(seam: clock)"),
    (check_seams, "client/a.py", "import asyncio\nasyncio.sleep(1)\n", "(seam: clock of the loop)"),
    (check_seams, "client/a.py", "import asyncio\nasyncio.get_running_loop().time()\n", "(seam: clock of the loop)"),
    (check_seams, "cli/a.py", "import uuid\nuuid.uuid4()\n", "(seam: rng)"),
    (check_seams, "bench/a.py", "import os\nos.urandom(9)\n", "(seam: rng)"),
    (check_seams, "client/a.py", "import secrets\nsecrets.token_bytes()\n", "(seam: rng)"),
    (check_seams, "bookie/a.py", "open('x')\n", "(seam: disk)"),
    (check_seams, "bookie/a.py", "import os\nos.path.exists('x')\n", "(seam: disk)"),
    (check_seams, "bookie/a.py", "from os import path\npath.getsize('x')\n", "(seam: disk)"),
    (check_seams, "bookie/a.py", "from pathlib import Path\n", "(seam: disk)"),
    (check_seams, "sim/deterministic/a.py", "import os\nos.fsync(1)\n", "(seam: disk)"),
    (check_seams, "cli/a.py", "import asyncio\nasyncio.create_task(f())\n", "(seam: tasks)"),
    (check_seams, "client/a.py", "self._loop.create_task(f())\n", "(seam: tasks)"),
    (check_seams, "client/a.py", "loop.run_in_executor(None, f)\n", "(seam: tasks)"),
    (check_seams, "bookie/a.py", "import threading\nthreading.Thread(target=f)\n", "(seam: tasks)"),
    (check_seams, "core/a.py", "import os\nos.environ.get('X')\n", "(seam: process)"),
    (check_purity, "core/a.py", "import asyncio\n", "imports asyncio"),
    (check_purity, "client/writer/machine.py", "from tallybook.runtime import clock\n", "imports tallybook.runtime"),
    (check_task_order, "client/a.py", WAITING + "    for task in done: ...\n", "set of tasks"),
    (check_task_order, "client/a.py", WAITING + "    print(*(done | pending))\n", "set of tasks"),
    (check_task_order, "client/a.py", WAITING + "    done.pop()\n", "set of tasks"),
    (check_task_order, "client/a.py", "import asyncio\nasync def f(x): [t for t in list((await asyncio.wait(x))[0])]\n",
     "set of tasks"),
    (check_task_order, "client/a.py", "import asyncio\ndef f():\n    for t in asyncio.all_tasks(): t.cancel()\n",
     "set of tasks"),
    (check_relative_imports, "client/reader/a.py", "from ...core import ids\n", "leaves the folder"),
    (check_relative_imports, "client/a.py", "from ..core import ids\n", "leaves the folder"),
    (check_wire_imports, "client/a.py", "import grpc.aio\n", "grpc is used only"),
    (check_wire_imports, "cli/a.py", "from grpc_health.v1 import health\n", "grpc is used only"),
    (check_wire_imports, "client/a.py", "from tallybook.proto import bookie_pb2\n", "generated messages"),
    (check_wire_imports, "client/a.py", "from tallybook.proto.bookie_pb2 import Add\n", "generated messages"),
    (check_dead_modules, "client/a.py", "'''A.'''\n", "nothing imports this module"),
]  # fmt: skip


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write ``files`` below ``root``."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize(("check", "path", "text", "message"), PLANTED)
def test_a_planted_violation_is_found_where_it_is(check, path, text, message, tmp_path):
    [found] = check(plant(tmp_path, {path: text}))
    assert found.startswith(f"{path}:")
    assert message in found


def test_a_folder_with_too_many_modules_is_found(tmp_path):
    files = {f"core/a{number}.py": '"""One of many."""\n' for number in range(MAX_FOLDER_MODULES + 1)}
    assert check_sizes(plant(tmp_path, files)) == ["core: 21 modules; make a room of some (limit 20)"]


def test_every_rule_has_a_planted_violation():
    assert {check for check, *_ in PLANTED} == set(CHECKS)


CLEAN = {
    "cli/__main__.py": '''
"""A program: it may read clocks and files."""
import time
from tallybook.client.a import f
print(time.time(), open("x"), f)  # TODO: show the size of the file, too
''',
    "client/a.py": '''
"""A module that comes near every rule."""
import asyncio
import os.path
from pathlib import PurePosixPath
from uuid import UUID
from .reader.b import g
async def f(disk, tasks, clock):
    await disk.open(os.path.join("a", "b"))
    await clock.sleep(1)
    done, pending = await asyncio.wait(tasks)
    for task in sorted(done, key=asyncio.Task.get_name): task.result()
    async with asyncio.TaskGroup() as group: group.create_task(g(len(pending)))
    return UUID(int=1), PurePosixPath("a")
''',
    "client/reader/b.py": '"""Imported relatively."""\nfrom ..a import f\nasync def g(n): return f, "../", "shared"\n',
    "proto/a_pb2.py": "assert generated_code_is_not_checked\n",
    "bookie/rpc/service.py": '"""May use messages."""\nfrom tallybook.proto import a_pb2\nb = "tallybook.sim.a:x"\n',
    "runtime/grpc/stream_server.py": '"""May use both."""\nimport grpc\nfrom tallybook.proto import a_pb2\n',
    "runtime/user.py": '"""Uses."""\nfrom tallybook.bookie.rpc.service import b\nfrom .grpc import stream_server\n',
    "sim/a.py": '"""Named in a string."""\n',
    "sim/b.py": '"""Test equipment."""\n',
    "docs/a.md": "See [b](../" + "docs/a.md), `/api/v1/x`, <https://example.org/x/y>, /var/lib/x and and/or.\n",
    "tests/unit/test_a.py": '"""A test."""\nimport random, tallybook.runtime.user, tallybook.sim.b\nassert 1\n',
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_clean_code_passes(check, tmp_path):
    expected = ["runtime/user.py:1: nothing imports"] if check is check_dead_modules else []
    found = check(plant(tmp_path, CLEAN))
    assert len(found) == len(expected), found
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True))
