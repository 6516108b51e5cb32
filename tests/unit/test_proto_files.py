"""The .proto files can be compiled from where they are, without mapping of paths, in any language."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "proto"
FILES = sorted(str(file.relative_to(FOLDER)) for file in FOLDER.glob("**/*.proto"))


def protoc(*words: str) -> None:
    """Run protoc in the root of the tree."""
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *words], cwd=ROOT, check=True, timeout=60)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileDescriptorProto]:
    """The descriptors that protoc makes of all files, by their paths, with ``proto/`` as the only root."""
    out = tmp_path_factory.mktemp("proto") / "all"
    protoc("-I", "proto", f"--descriptor_set_out={out}", *FILES)
    return {file.name: file for file in FileDescriptorSet.FromString(out.read_bytes()).file}


def test_the_command_of_the_page_generates_code_of_both_apis(tmp_path: Path) -> None:
    page = (ROOT / "docs/use/gateway.md").read_text()
    [command] = re.findall(r"^    protoc (.*)$", page, re.MULTILINE)
    protoc(*command.replace("=out", f"={tmp_path}").split())
    made = {file.name for file in (tmp_path / "tallybook/api/v1").iterdir()}
    assert made == {f"{api}_pb2.{kind}" for api in ("ledger", "stream") for kind in ("py", "pyi")}


def test_each_file_is_in_the_folder_of_its_package_with_a_go_package(compiled: dict[str, FileDescriptorProto]) -> None:
    assert sorted(compiled) == FILES
    for path, file in compiled.items():
        folder = file.package.replace(".", "/")
        assert (str(Path(path).parent), file.options.go_package.partition(";")[0]) == (folder, folder)


def test_buf_takes_the_folder_as_the_root_of_the_imports() -> None:
    settings = yaml.safe_load((FOLDER / "buf.yaml").read_text())
    assert (settings["version"], settings["modules"]) == ("v2", [{"path": "."}])
