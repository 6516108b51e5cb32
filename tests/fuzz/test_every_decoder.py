"""Every function that decodes untrusted bytes or text is reached by a fuzz target, or is excused with a reason.

Such functions are recognized by their calls (``struct``, ``json``, protobuf messages, ...) and by their names. Add a
new one to ``covers`` of the decoder that reaches it, or to ``EXCUSED`` below.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = (
    "core", "runtime", "wire", "metadata", "archive", "bookie", "client", "offload", "repair", "stream", "spark",
    "gateway", "cli",
)  # fmt: skip
ELSEWHERE = ("sim/*", "bench/*", "cli/demo/*")
"""Test equipment, and a scripted run whose processes exchange messages."""

METHODS = frozenset({
    "unpack", "unpack_from", "iter_unpack", "from_bytes", "frombuffer", "frombytes", "fromhex", "b64decode",
    "FromString", "ParseFromString", "MergeFromString", "loads", "model_validate", "model_validate_json",
    "validate_python", "fromisoformat", "decompress", "ParquetFile", "open_stream", "schemaless_reader",
})  # fmt: skip
PLAIN = frozenset({"urlsplit", "unquote", "pq.read_metadata"})
"""Names of decoding calls: methods of any object, and functions."""

NAMES = re.compile(r"_*(?:decode|parse)(?:_\w+|d)?|from_(?:bytes|json|text|wire|environment|file)|of_json")

EXCUSED = {
    "cli/checked_command.py:CheckedCommand.parse_args": "Click's own parser takes the words apart; this keeps them",
    "runtime/security/authority.py:Authority._keys": "what the authority has written for itself",
    "cli/local/gateway.py:run_server": "the line by which a server of our own says that it is ready",
    "runtime/grpc/health_and_reflection.py:_service_asked": "one message of gRPC's own, which protobuf takes apart",
    "runtime/grpc/health_and_reflection.py:_Reflection._questions": "the same",
    "runtime/grpc/connection_watch.py:peer_of": "what gRPC itself says of a connection",
    "runtime/metrics/registry.py:_build": "what pip wrote about this installation",
    "stream/namespaces.py:Namespaces.set": "a size that a person gives",
    "runtime/rng.py:SeededRng.__init__": "a hash of the seed",
    "spark/payloads/payloads.py:Parser.parse": "says what its kinds do, each of which is fuzzed",
    "spark/pipelines/compact.py:compact": "what a driver tells its own executors",
    "spark/pipelines/compact.py:_moved": "what a driver tells its own executors",
    "spark/pipelines/verify.py:_from_json": "what a driver tells its own executors",
    "spark/pipelines/verify.py:_verified.work": "what a driver tells its own executors",
}


def is_decoder(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is named like a decoder, or calls one; nested functions are ignored."""
    if NAMES.fullmatch(function.name):
        return True
    for node in own_nodes(function):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in METHODS:
            return True
        if called is not None and ast.unparse(called) in PLAIN:
            return True
    return False


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without nested functions."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from own_nodes(child)


def functions(tree: ast.AST, before: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All functions of a module, by their names: ``Class.method``, ``outer.inner``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield before + node.name, node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from functions(node, f"{before}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from functions(node, before)


def all_functions() -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions of the product, by the names that targets use."""
    found = {}
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = file.relative_to(ROOT)
            if not any(path.match(pattern) for pattern in ELSEWHERE) and not file.name.endswith(
                ("_pb2.py", "_grpc.py")
            ):
                found |= {f"{path.as_posix()}:{name}": node for name, node in functions(ast.parse(file.read_text()))}
    return found


FUNCTIONS = all_functions()
COVERED = {name for target in TARGETS.values() for decoder in target.decoders.values() for name in decoder.covers}


def test_every_function_that_takes_bytes_apart_is_fuzzed_or_excused():
    decoders = {name for name, function in FUNCTIONS.items() if is_decoder(function)}
    assert len(decoders) > 100
    assert sorted(decoders - COVERED - set(EXCUSED)) == []


def test_what_is_said_to_be_fuzzed_or_excused_is_there():
    assert sorted((COVERED | set(EXCUSED)) - set(FUNCTIONS)) == []
    assert sorted(COVERED & set(EXCUSED)) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def decode_it(x): ...", ["decode_it"]),
        ("class A:\n    async def parse(self): ...", ["A.parse"]),
        ("def f(x):\n    return json.loads(x)", ["f"]),
        ("def f(x):\n    def g(y):\n        return pb.A.FromString(y)\n    return g", ["f.g"]),
        ("def f(x):\n    return encode(x)", []),
        ("def decoder_of(x): ...", []),
    ],
)
def test_a_decoder_is_known_by_its_name_or_by_what_it_calls(source: str, found: list[str]):
    assert [name for name, function in functions(ast.parse(source)) if is_decoder(function)] == found


def test_the_page_says_what_each_target_is_about():
    page = (ROOT / "docs" / "project" / "fuzzing.md").read_text()
    first_table = page.partition("| target | inputs |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", first_table, re.MULTILINE)) == sorted(TARGETS)
