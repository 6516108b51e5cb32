"""The .proto files can be compiled from where they are, without mapping of paths."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_of_the_page_generates_code_of_both_apis(tmp_path):
    page = (ROOT / "docs/use/gateway.md").read_text()
    [command] = re.findall(r"^    protoc (.*)$", page, re.MULTILINE)
    words = command.replace("=out", f"={tmp_path}").split()
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *words], cwd=ROOT, check=True, timeout=60)
    made = {file.name for file in (tmp_path / "tallybook/proto").iterdir()}
    assert made == {f"{api}_pb2.{kind}" for api in ("ledger", "stream") for kind in ("py", "pyi")}
    assert (tmp_path / "tallybook/proto/stream_pb2.py").read_text() == (ROOT / "proto/stream_pb2.py").read_text()
