"""The API reference (``scripts/gen-api-docs``): it builds without warnings, and agrees with the code.

Statements of docstrings about arguments, errors and other functions are compared with the code. Each comparison is
tested on a function with a wrong docstring.
"""

import builtins
import importlib
import inspect
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tallybook.core import errors

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gen-api-docs"
MODULES = runpy.run_path(str(SCRIPT))["MODULES"]

# Errors of libraries that pass through, and errors raised under a condition that their text describes.
OF_OTHERS = {"StreamingQueryException"}


class Told(NamedTuple):
    """A documented object, with its class, if it has one, and the module it is imported from."""

    name: str
    value: Any
    around: Any
    module: Any

    @property
    def text(self) -> str:
        """The documentation."""
        return inspect.getdoc(self.value) or ""

    def section(self, title: str) -> list[str]:
        """The entries of a section, each in one line."""
        found = re.search(rf"^{title}:\n((?:    .*\n|\n)+)", self.text + "\n", re.MULTILINE)
        return re.sub(r"\n {5,}", " ", found[1]).split("\n") if found else []


def names_of(module: Any) -> list[str]:
    """The public names of a module."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return getattr(module, "__all__", [name for name in own if not name.startswith("_")])


def members(name: str, value: type, module: Any) -> Iterator[Told]:
    """The methods and properties of a class."""
    for attribute, member in list(vars(value).items()):
        plain = getattr(member, "__func__", member)
        if not attribute.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
            yield Told(f"{name}.{attribute}", plain, value, module)


def everything() -> Iterator[Told]:
    """Modules, functions, classes and their members, as programs see them."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        yield Told(module_name, module, module, module)
        for name in names_of(module):
            value = getattr(module, name)
            if inspect.isfunction(value) or inspect.isclass(value):
                yield Told(f"{module_name}.{name}", value, module, module)
            if inspect.isclass(value):
                yield from members(f"{module_name}.{name}", value, module)


def check_told(one: Told) -> str:
    """Everything is told of in a sentence."""
    return "" if one.text[:1].isupper() or one.text.startswith("``") else "nothing is told of it"


def check_arguments(one: Told) -> str:
    """``Args:`` names arguments, or fields, that there are."""
    listed = {name for line in one.section("Args") for name in re.split(r", ", line.partition(":")[0].strip()) if name}
    if not listed:
        return ""
    known = set(inspect.signature(one.value).parameters) | set(getattr(one.value, "__annotations__", ()))
    return f"no such argument: {', '.join(sorted(listed - known))}" if listed - known else ""


def check_errors(one: Told) -> str:
    """``Raises:`` names errors that there are, or what raises the same."""
    for line in map(str.strip, one.section("Raises")):
        listed = line.partition(":")[0].removeprefix("Whatever ")
        for name in () if not line or listed.startswith("As ") else listed.split(", "):
            if name != "..." and name not in OF_OTHERS and not hasattr(errors, name) and not hasattr(builtins, name):
                return f"no such error: {name}"
    return ""


def check_references(one: Told) -> str:
    """``As`` something else, errors or arguments, means something that there is."""
    lines = [line.strip() for title in ("Args", "Raises") for line in one.section(title)]
    for dotted in re.findall(r"(?:^As|\bas for) ``([\w.]+)``", "\n".join(lines), re.MULTILINE):
        if not any(leads_somewhere(dotted, place) for place in (one.around, one.module)):
            return f"no such name beside it: {dotted}"
    return ""


def leads_somewhere(dotted: str, value: Any) -> bool:
    """Whether ``dotted`` names an existing object, relative to ``value``."""
    for name in dotted.split("."):
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


CHECKS = [check_told, check_arguments, check_errors, check_references]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_reference_is_true(check: Callable[[Told], str]):
    found = [f"{one.name}: {wrong}" for one in everything() if (wrong := check(one))]
    if found:
        pytest.fail(f"{check.__doc__}\n  " + "\n  ".join(found), pytrace=False)


def test_the_reference_is_made_without_a_warning_and_has_no_address_in_memory(tmp_path):
    subprocess.run([sys.executable, "-P", SCRIPT, tmp_path], check=True, capture_output=True, timeout=120)
    for name in MODULES:
        page = (tmp_path / name.replace(".", "/")).with_suffix(".html").read_text()
        assert not re.search(r"\b0x[0-9a-f]{6,}\b", page), name


# --- the checks -------------------------------------------------------------------------------------------------------


def silent(): ...


def of_no_such_argument(first: int, second: int):
    """Told wrongly.

    Args:
        first, second: are there; their text
            goes on here.
        third: is not.
    """


def of_no_such_error():
    """Told wrongly.

    Raises:
        KeyError, NoSuchLedger, ...: are errors.
        LedgerLost: is not, of any
            kind.
        As ``silent``.
    """


def of_no_such_neighbour():
    """Told wrongly.

    Raises:
        As ``silent``.
        KeyError: as for ``Told.section``, unlike ``Told.nothing``.
        As ``Told.chapter``, but for KeyError.
    """


@pytest.mark.parametrize(
    ("check", "function", "wrong"),
    [
        (check_told, silent, "nothing is told of it"),
        (check_arguments, of_no_such_argument, "no such argument: third"),
        (check_errors, of_no_such_error, "no such error: LedgerLost"),
        (check_references, of_no_such_neighbour, "no such name beside it: Told.chapter"),
    ],
)
def test_wrong_docstrings_are_found_and_no_others(check, function, wrong):
    one = Told(function.__name__, function, *[sys.modules[__name__]] * 2)
    assert {other: other(one) for other in CHECKS if other(one)} == {check: wrong}
