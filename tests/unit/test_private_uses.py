"""How often tests use what is private to the product: the number may only fall.

A test through constructor arguments, ports, metrics or the public effect survives a change of the code behind them.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

MAX_PRIVATE_USES = 357
"""Lower it when you have removed some."""
SLACK = 10

OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def is_private(name: object) -> bool:
    return isinstance(name, str) and name[:1] == "_" and name[:2] != "__" and name not in OF_NAMED_TUPLES


def private_uses(tree: ast.AST) -> Iterator[str]:
    """Attributes of other objects, names that are patched, and imports, if they begin with an underscore."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Attribute(value=ast.Name(id="self" | "cls"))
                | ast.Attribute(value=ast.Call(func=ast.Name(id="super")))
            ):
                continue
            case ast.Attribute(attr=name) if is_private(name):
                yield name
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=[_, ast.Constant(value=name), *_]):
                if is_private(name):
                    yield name
            case ast.ImportFrom(names=names):
                yield from (each.name for each in names if is_private(each.name))


def test_private_attributes_are_used_no_more_often_than_before():
    uses = {
        path.relative_to(TESTS).as_posix(): len(list(private_uses(ast.parse(path.read_text("utf-8")))))
        for path in TESTS.rglob("*.py")
    }
    count, most = sum(uses.values()), sorted(uses.items(), key=lambda each: -each[1])[:10]
    assert count <= MAX_PRIVATE_USES, f"{count} uses of private attributes; most of them in {most}"
    assert count > MAX_PRIVATE_USES - SLACK, f"there are only {count} left: lower MAX_PRIVATE_USES"


def test_uses_of_other_objects_count_and_those_of_a_test_itself_do_not():
    code = "from a import _b\nc._d._e\nself._f\nsuper()._g()\nh._replace()\nmonkeypatch.setattr(i, '_j', 1)\nk.__l__\n"
    assert sorted(private_uses(ast.parse(code))) == ["_b", "_d", "_e", "_j"]
