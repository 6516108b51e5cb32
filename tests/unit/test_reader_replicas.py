"""The replica order of a reader: which bookies are avoided for a while, and which are not blamed."""

from __future__ import annotations

import pytest

from tallybook.client.reader.machine import ReadAttempt, SpeculationPolicy
from tallybook.client.reader.replicas import FAILURE_EXPIRY_S, ReplicaAnswer, Replicas
from tallybook.core import errors
from tallybook.core.errors import TallybookError
from tallybook.stream.gaps import is_lost

NAMES = ("a", "b", "c")


class Clock:
    """One that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class OneFails:
    """Connections, and reads, of which those of one bookie fail."""

    def __init__(self, bookie_id: str, error: TallybookError, *, at_once: bool) -> None:
        self._bookie_id = bookie_id
        self._error = error
        self._at_once = at_once

    async def get(self, bookie_id: str) -> str:
        if self._at_once:
            self._fail(bookie_id)
        return bookie_id

    async def ask(self, connection: str) -> str:
        self._fail(connection)
        return f"a copy of {connection}"

    def _fail(self, bookie_id: str) -> None:
        if bookie_id == self._bookie_id:
            raise self._error


@pytest.mark.parametrize("at_once", [True, False], ids=["not_connected", "connected"])
@pytest.mark.parametrize(
    ("kind", "blamed"),
    [
        (errors.BookieUnavailable, True),
        (errors.RequestTimeout, True),
        (errors.DiskFailed, True),
        (errors.OutOfFiles, True),
        (errors.MetadataUnavailable, False),
        (errors.Busy, False),
        (errors.StaleIncarnation, False),
        (errors.EntryAbsent, False),
        (errors.EntryUnknown, False),
        (errors.EntryCorrupt, False),
        (errors.DamagedFile, False),
        (errors.NoSuchLedger, False),
        (errors.TallybookError, False),
    ],
)
async def test_only_a_bookie_that_is_silent_or_has_a_bad_disk_is_asked_last_for_a_while(
    kind: type[TallybookError], blamed: bool, at_once: bool
) -> None:
    clock, failing = Clock(), OneFails("a", kind("told"), at_once=at_once)
    replicas = Replicas(failing, clock, SpeculationPolicy(0.0), lambda *_: None)
    attempt = ReadAttempt(1, 5, replicas.in_order(NAMES))
    assert await replicas.search(attempt, failing.ask) == ReplicaAnswer("a copy of b")
    assert list(attempt.errors) == ["a"]
    assert replicas.in_order(NAMES) == (["b", "c", "a"] if blamed else ["b", "a", "c"])
    clock.now += FAILURE_EXPIRY_S
    assert replicas.in_order(NAMES) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("other", "settled"),
    [
        (errors.EntryAbsent, True), (errors.EntryCorrupt, True), (errors.BookieUnavailable, False),
        (errors.RequestTimeout, False), (errors.Busy, False), (errors.EntryUnknown, False), (errors.DiskFailed, False),
    ],
)  # fmt: skip
def test_a_damaged_copy_is_a_loss_only_if_every_replica_responded(other: type[TallybookError], settled: bool) -> None:
    attempt = ReadAttempt(1, 5, NAMES[:2])
    attempt.failed("a", errors.EntryCorrupt("flipped"))
    attempt.failed("b", other("told"))
    verdict = attempt.verdict()
    assert isinstance(verdict, errors.EntryCorrupt)
    assert verdict.settled is settled


def test_a_client_refused_everywhere_is_told_so_and_one_accepted_somewhere_gets_the_error_of_the_entry() -> None:
    attempt = ReadAttempt(1, 5, NAMES[:2])
    attempt.failed("a", errors.AccessDenied("app may not read"))
    attempt.failed("b", errors.AccessDenied("app may not read"))
    verdict = attempt.verdict()
    assert isinstance(verdict, errors.AccessDenied)
    assert "ledger 1, entry 5: access denied: app may not read" in verdict.message
    attempt.failed("b", errors.EntryAbsent("not here"))
    assert isinstance(attempt.verdict(), errors.EntryUnknown)


@pytest.mark.parametrize(
    "other", [errors.EntryCorrupt, errors.EntryAbsent, errors.DataMissing, errors.BookieUnavailable]
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_copy_that_only_a_newer_version_can_read_is_never_a_loss(other: type[TallybookError], turned: bool) -> None:
    attempt = ReadAttempt(1, 5, NAMES[:2])
    told = [errors.NewerFormat.of("the batch", 2, 1), other("told")]
    for name, error in zip(NAMES, reversed(told) if turned else told, strict=False):
        attempt.failed(name, error)
    verdict = attempt.verdict()
    assert isinstance(verdict, errors.NewerFormat)
    assert "the batch is of format 2, this Tallybook knows 1" in verdict.message
    assert not is_lost(verdict)
    assert not is_lost(errors.NewerFormat("alone"))
