"""Modules loaded with a client, and those loaded only when needed: each import makes a program start later."""

import json
import subprocess
import sys

import pytest

LOADED = """
import importlib, json, sys

importlib.import_module(sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""

NETWORK = {"google.protobuf", "grpc"}
METADATA = {"kazoo", "sqlite3"}
ARCHIVE = {"botocore", "cachetools", "numpy", "obstore", "pyarrow"}
SERVERS = {"prometheus_client", "rich", "rocksdict", "starlette", "typer", "uvicorn"}
SPARK = {"fastavro", "pandas", "py4j", "pyspark"}
TRACES = {"opentelemetry", "requests"}


def loaded(module: str) -> set[str]:
    """Every module that is there once ``module`` is."""
    done = subprocess.run([sys.executable, "-P", "-c", LOADED, module], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "module", ["tallybook.client", "tallybook.client.sync", "tallybook.stream", "tallybook.stream.sync"]
)
def test_a_program_that_imports_a_client_loads_no_library_before_it_opens_one(module):
    assert loaded(module) & (NETWORK | METADATA | ARCHIVE | SERVERS | SPARK | TRACES) == set()


@pytest.mark.parametrize("module", ["tallybook.bookie.process.server", "tallybook.gateway.server"])
def test_a_server_loads_nothing_of_traces_before_they_are_wanted(module):
    assert loaded(module) & TRACES == set()


def test_a_client_that_is_opened_loads_the_network_and_not_what_archives_are_read_with():
    found = loaded("tallybook.client.environment")
    assert found >= NETWORK
    assert found & (METADATA | ARCHIVE | SERVERS | SPARK | TRACES) == set()


def test_importing_the_spark_package_loads_nothing_before_it_is_asked_for_something():
    found = loaded("tallybook.spark")
    assert found & (NETWORK | METADATA | ARCHIVE | SERVERS | SPARK | {"asyncio", "pydantic"}) == set()
