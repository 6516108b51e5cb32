"""The console's diagnosis of two polls: which two, and how long it is kept."""

from __future__ import annotations

from tallybook.gateway.console.diagnosis import MAX_AGE_SECONDS, NOT_YET_KNOWN, DiagnosisTracker
from tallybook.repair.diagnosis.samples import Point, Sample
from tallybook.repair.diagnosis.sampling import ProcessSamples


def looked(at: float) -> ProcessSamples:
    points = [
        Point("tallybook_bookie_streams", frozenset(), 0),
        Point("tallybook_bookie_add_batches_total", frozenset(), at),
    ]
    return ProcessSamples({"b1": Sample("b1", at, points)}, {"g1": "no answer"})


def test_two_polls_five_seconds_apart_make_a_verdict_with_its_age_and_silent_processes():
    diagnosing = DiagnosisTracker()
    for at in (0.0, 2.0, 4.0):
        diagnosing.note(at, looked(at))
        assert diagnosing.status(at, "")["sentence"] == NOT_YET_KNOWN
    for at in (6.0, 8.0, 10.0, 12.0):
        diagnosing.note(at, looked(at))
        assert 5 <= diagnosing.status(at, "")["seconds"] <= 7
    told = diagnosing.status(15.0, "")
    assert (told["verdict"], told["age_s"], told["silent"]) == ("client-bound", 3.0, {"g1": "no answer"})


def test_a_verdict_of_long_ago_is_none():
    diagnosing = DiagnosisTracker()
    for at in (0.0, 6.0):
        diagnosing.note(at, looked(at))
    old = 6.0 + MAX_AGE_SECONDS + 1
    assert diagnosing.status(old, "")["verdict"] is None
    assert diagnosing.status(old, "nobody answers")["sentence"] == "not known: nobody answers"
    diagnosing.note(old, looked(old))
    assert diagnosing.status(old, "")["verdict"] is None, "the look before this one says nothing of now"
