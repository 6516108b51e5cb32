"""Fuzz the decoders of the product: ``make fuzz``, or ``python -m tests.fuzz`` at the root (docs/project/fuzzing.md).

    run TARGET... --seconds N    search; every target, if none is named
    keep TARGET...               put what is worth it into tests/fuzz/inputs, and what broke something into found
    check TARGET...              run all inputs that are kept, as pytest does
    list                         the names of the targets

A run works in ``out/fuzz/TARGET``: ``corpus`` is what the fuzzer goes on from, ``findings`` are inputs that broke
something, each with what was raised beside it. A finding does not end a run: others lie behind it. What does end it (a
decoder that hangs, takes too much memory, or crashes the process) is a finding as well.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "out" / "fuzz"

HANG_SECONDS = 20
"""The time limit for one input, generous for slow machines."""
MEMORY_MIB = 2_048
"""The memory limit of the process: that of the libraries, and several times the limit of a single input."""
LONGEST_BYTES = 16_384
START_SECONDS = 600
"""Time of a run besides the search: to import all modules, and to run the existing inputs."""

UNWATCHED = ["tallybook.stream.records.columnar"]
"""Modules that compare arrays at every input: Atheris 3.0 keeps the result of every traced comparison."""

_EXECUTIONS = re.compile(r"stat::number_of_executed_units: (\d+)")


def main() -> int:
    """Run the given subcommand."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=["run", "keep", "check", "list", "search"])
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    if given.command == "search":
        return search(given.targets[0], given.seconds)
    from .targets import TARGETS  # noqa: PLC0415 (a search loads them in its own way)

    logging.disable()
    wanted = given.targets or list(TARGETS)
    if unknown := sorted(set(wanted) - set(TARGETS)):
        parser.error(f"no target is called {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if given.command == "list":
        print("\n".join(wanted))
        return 0
    if given.command == "run":
        return max([run(name, given.seconds) for name in wanted])
    return max([(keep if given.command == "keep" else check)(name) for name in wanted])


def run(name: str, seconds: int) -> int:
    """Search in a separate process, since the fuzzer ends its own; return 1 if something was found."""
    from .corpus import kept_inputs  # noqa: PLC0415
    from .targets import TARGETS  # noqa: PLC0415

    target, corpus, findings = TARGETS[name], WORK / name / "corpus", WORK / name / "findings"
    for directory in (corpus, findings):
        directory.mkdir(parents=True, exist_ok=True)
    for decoder, data in kept_inputs(target):
        found = target.input_of(decoder, data)
        (corpus / hashlib.sha1(found).hexdigest()).write_bytes(found)
    before = set(findings.iterdir())
    command = [sys.executable, "-m", "tests.fuzz", "search", name, "--seconds", str(seconds)]
    code: int | str
    with (WORK / name / "log").open("w") as log:
        try:
            limit = seconds + START_SECONDS
            code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=False, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            code = "killed: it did not end in time"
    executions = _EXECUTIONS.search((WORK / name / "log").read_text(errors="replace"))
    new = {file for file in findings.iterdir() if file not in before and file.suffix != ".txt"}
    count, kept = executions[1] if executions else "?", len(list(corpus.iterdir()))
    print(f"| {name} | {seconds} s | {count} | {kept} | {len(new)} | exit code {code}", flush=True)
    for file in sorted(new):
        print(f"    {file.relative_to(ROOT)}", flush=True)
    return int(bool(new) or code != 0)


def search(name: str, seconds: int) -> int:
    """Let the fuzzer run in this process, over product code that is instrumented for branch coverage."""
    import atheris  # noqa: PLC0415 (not a requirement of the tests)

    with atheris.instrument_imports(include=["tallybook"], exclude=UNWATCHED):
        from .targets import TARGETS  # noqa: PLC0415 (in here, so that the product's modules are instrumented)
    target, home = TARGETS[name], WORK / name
    logging.disable()
    (home / "words").write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={HANG_SECONDS}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-max_len={LONGEST_BYTES}",
        f"-dict={home / 'words'}",
        f"-artifact_prefix={home / 'findings'}/",
        "-print_final_stats=1",
    ]
    # Files for decoders are in memory if the system has a file system for that.
    tempfile.tempdir = "/dev/shm" if Path("/dev/shm").is_dir() else None
    atheris.Setup([name, str(home / "corpus"), *options], noting(target.run_any, home / "findings"))
    atheris.Fuzz()
    return 0


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def noting(run_any: Callable[[bytes], None], findings: Path) -> Callable[[bytes], None]:
    """Like ``run_any``, but record each exception, once per place that raises it, and go on."""
    seen: set[str] = set()

    def run_and_note(found: bytes) -> None:
        try:
            run_any(found)
        except Exception as error:  # noqa: BLE001 (what is raised is what is looked for)
            told = "".join(traceback.format_exception(error))
            places = re.findall(r'File "([^"]*)", line (\d+)', told)
            ours = [place for place in places if place[0].startswith(str(ROOT)) and ".venv" not in place[0]]
            kind = f"{type(error).__name__} {ours[-3:] if ours[-1][0].endswith('harness.py') else ours[-1:]}"
            if kind not in seen:
                seen.add(kind)
                name = f"{type(error).__name__}-{hashlib.sha1(kind.encode()).hexdigest()[:12]}"
                (findings / name).write_bytes(found)
                (findings / f"{name}.txt").write_text(told[-8_000:])

    return run_and_note


def keep(name: str) -> int:
    """Store the results of a run in the repository; inputs that break something are run first from now on."""
    from .corpus import FOUND, INPUTS, add, kept_inputs, read, write  # noqa: PLC0415
    from .selection import chosen  # noqa: PLC0415
    from .targets import TARGETS  # noqa: PLC0415

    target, home = TARGETS[name], WORK / name
    findings = [
        target.taken_apart(file.read_bytes()) for file in (home / "findings").glob("*") if file.suffix != ".txt"
    ]
    if findings:
        add(FOUND / f"{name}.txt", findings)
    before = read(INPUTS / f"{name}.txt")
    known = [each for each in kept_inputs(target) if each not in before]
    candidates = [target.taken_apart(file.read_bytes()) for file in (home / "corpus").glob("*")]
    found = chosen(target, known, [*before, *candidates])
    write(INPUTS / f"{name}.txt", found)
    print(f"{name}: {len(found)} inputs of {sum(len(data) for _, data in found)} bytes are kept, of {len(candidates)}")
    return 0


def check(name: str) -> int:
    """Run every kept input."""
    from .corpus import kept_inputs  # noqa: PLC0415
    from .targets import TARGETS  # noqa: PLC0415

    target, failed, started = TARGETS[name], 0, time.monotonic()
    for count, (decoder, data) in enumerate(kept_inputs(target), 1):
        try:
            target.run(decoder, data)
        except Exception as error:  # noqa: BLE001 (all are reported)
            failed += 1
            print(f"{name}, input {count}, {decoder}: {error!r:.300}: {data[:100]!r}")
    print(f"{name}: {time.monotonic() - started:.1f} s, {failed} inputs fail")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
