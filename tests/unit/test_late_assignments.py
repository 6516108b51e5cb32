"""An object sets its own attributes: others give it values by its constructor, or call a method."""

import ast
from pathlib import Path

import pytest

from .test_tidy import ROOT, nodes, plant, product

# What another object may set, by module.
EXEMPT: dict[str, set[str]] = {
    # A report, status or gauge.
    "metadata/zookeeper/session.py": {"self.link.connected"},
    "repair/replicator.py": {"self.totals.last_error"},
    "runtime/grpc/connection_watch.py": {"self._load.waiting"},
    # Objects of a library, or of the same module.
    "archive/encoder.py": {"self._sink.chunks", "self._sink.walk"},
    "metadata/memory.py": {"self._client.shared.id_counter"},
    "runtime/http/protocol.py": {"self.cycle.disconnected"},
    "runtime/http/server.py": {"self._server.should_exit"},
    "runtime/http/tls.py": {"self._inner.entry"},
}


def late_assignments(root: Path) -> list[str]:
    """Assignments to attributes of other objects. Only simulated devices have hooks, which faults set during a run."""
    found = []
    for module in product(root):
        if module.matches("sim/*", "bench/*"):
            continue
        for assignment in nodes(module, ast.Assign):
            for node in (part for target in assignment.targets for part in ast.walk(target)):
                if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
                    continue
                owner, name = ast.unparse(node.value), ast.unparse(node)
                if owner != "self" and (node.attr.startswith("on_") or isinstance(assignment.value, ast.Lambda)):
                    found.append(module.at(node, f"callable assigned to another object ({name}); make it an argument"))
                elif is_of_another(owner) and name not in EXEMPT.get(module.path, ()):
                    found.append(module.at(node, f"{name} is set from outside; call a method of its owner"))
    return found


def is_of_another(owner: str) -> bool:
    """Whether an expression is an attribute of ``self``, or of such an attribute."""
    return owner.startswith("self.") and "[" not in owner


def test_objects_set_only_their_own_attributes():
    assert late_assignments(ROOT) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x.link.on_end = self.end", "callable assigned to another object (x.link.on_end)"),
        ("self.other.load = lambda: 1", "callable assigned to another object (self.other.load)"),
        ("self.closing = self._flow.closing = True", "self._flow.closing is set from outside"),
        ("self.a, self._flow.closing = 1, True", "self._flow.closing is set from outside"),
    ],
)
def test_an_assignment_from_outside_is_found(line, message, tmp_path):
    [found] = late_assignments(plant(tmp_path, {"client/a.py": f"def f(self, x):\n    {line}\n"}))
    assert found.startswith(f"client/a.py:2: {message}")


def test_counters_of_others_may_be_increased(tmp_path):
    text = "def f(self):\n    self.a = 1\n    self.load.sent += 1\n    self._rows[0].b = 1\n"
    assert late_assignments(plant(tmp_path, {"client/a.py": text})) == []
