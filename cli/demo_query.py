"""Asking Spark, as the demo does: whether it is there, and the program that asks."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tallybook.core.errors import RequestTimeout, TallybookError

from .demo_spark import MODULE
from .launcher import LocalCluster

_SPARK_SECONDS: Final = 180.0
_LAST_WORDS: Final = 1_500
_JAVA_SECONDS: Final = 30.0


def missing_for_spark() -> str:
    """What is not there that a query by Spark takes; empty if all is."""
    absent = [name for name in ("pyspark", "pandas") if find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed (pip install 'tallybook[spark]')"
    java = shutil.which("java")
    if java is None:
        return "there is no java, and Spark runs on Java 17"
    try:
        subprocess.run([java, "-version"], check=True, capture_output=True, timeout=_JAVA_SECONDS)  # noqa: S603 (Spark runs it, too)
    except (subprocess.SubprocessError, OSError) as error:
        return f"java does not run: {error}"
    return ""


async def ask_spark(cluster: LocalCluster, flights: Path, count: int) -> dict[str, Any]:
    """What the program says.

    Raises:
        RequestTimeout: it took too long.
        TallybookError: it failed; the message has its last words.
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
