"""One public class or type alias, one name: a search for it in product, simulator and benchmarks finds one thing."""

import configparser
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# At the top level of a module: a class, or an alias or type variable in CamelCase.
DEFINED = re.compile(r"^(?:class ([A-Z]\w*)|([A-Z][A-Z0-9]*[a-z]\w*)(?:: TypeAlias)? =)", re.MULTILINE)

BLOCKING = {
    "ChosenIdsWriter", "Client", "LedgerReader", "LedgerWriter", "PendingAppend", "PendingRecord", "StreamReader",
    "StreamStore", "StreamWriter", "SubscriptionReader",
}  # fmt: skip
"""Public names of the asyncio client and the blocking one, which have the same calls."""


def definitions(text: str) -> list[str]:
    """The public classes and aliases of a module."""
    return [match[1] or match[2] for match in DEFINED.finditer(text)]


def sources() -> dict[str, str]:
    """Python files of the packages, with their texts."""
    folders: list[str] = []
    for name in ("setup.cfg", "devtools/setup.cfg"):
        config = configparser.ConfigParser(interpolation=None)
        config.read(ROOT / name)
        folders += [
            package.replace(".", "/").removeprefix("tallybook/") for package in config["options"]["packages"].split()
        ]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for folder in folders
        for path in (ROOT / folder).glob("*.py")
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    }


def test_no_public_name_is_defined_twice() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path, text in sources().items():
        for name in set(definitions(text)):
            found[name].append(path)
    assert len(found) > 1000
    assert {name: paths for name, paths in found.items() if len(paths) > 1 and name not in BLOCKING} == {}
    assert {name for name in BLOCKING if len(found[name]) == 2} == BLOCKING


def test_classes_and_aliases_are_seen_but_constants_and_private_names_are_not() -> None:
    text = "class A:\n    class B: ...\nclass _C: ...\nDe = int\nFg: TypeAlias = str\nHI = 1\nJ_K: Final = 2"
    assert definitions(text) == ["A", "De", "Fg"]
