"""Checks whether Spark can run, and runs the demo's query in a separate process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tallybook.core.errors import RequestTimeout, TallybookError
from tallybook.runtime.extras import how_to_install

from ..local.launcher import LocalCluster
from .spark import MODULE

_SPARK_SECONDS: Final = 180.0
_LAST_WORDS: Final = 1_500
_JAVA_SECONDS: Final = 30.0
_LEAST_JAVA: Final = 17


def missing_for_spark() -> str:
    """The requirement of Spark that is missing, and its remedy; empty if none is."""
    absent = [name for name in ("pyspark", "pandas") if find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed: {how_to_install('spark')}"
    return _missing_java(os.environ.get("JAVA_HOME", ""))


def _missing_java(home: str) -> str:
    """The problem of the Java that Spark would use (of ``JAVA_HOME``, else the first on the path); empty if none."""
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        where = f"JAVA_HOME is {home}, and has no bin/java" if home else "java is not installed"
        return f"{where}; Spark needs Java {_LEAST_JAVA} or later"
    try:
        said = subprocess.run([java, "-version"], check=True, capture_output=True, timeout=_JAVA_SECONDS)  # noqa: S603 (Spark runs it, too)
    except (subprocess.SubprocessError, OSError) as error:
        return f"java does not run: {error}"
    # Java 8 reports "1.8...", later versions their number first: openjdk version "17.0.9" 2023-10-17
    version = re.search(rb'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if version is None:
        return f"the version of {java} is not known; Spark needs Java {_LEAST_JAVA} or later"
    if int(version[1]) < _LEAST_JAVA:
        return f"{java} is Java {int(version[1])}, and Spark needs {_LEAST_JAVA} or later (JAVA_HOME names another one)"
    return ""


async def ask_spark(cluster: LocalCluster, flights: Path, count: int) -> dict[str, Any]:
    """The result of the query.

    Raises:
        RequestTimeout: it took too long.
        TallybookError: it failed; the message has the end of its standard error.
    """
    with tempfile.TemporaryDirectory(dir=cluster.directory) as scratch:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", MODULE, "--metadata", cluster.metadata, "--flights", str(flights),
            "--count", str(count), "--scratch", scratch,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            cwd=scratch,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_SPARK_SECONDS):
                out, err = await process.communicate()
        except TimeoutError as error:
            raise RequestTimeout(f"Spark had not answered after {_SPARK_SECONDS:.0f} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode:
        raise TallybookError(f"the query by Spark failed: {err.decode(errors='replace')[-_LAST_WORDS:]}")
    found: dict[str, Any] = json.loads(out)
    return found
