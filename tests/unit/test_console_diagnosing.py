"""What the console says of two looks: of which two, and for how long."""

from __future__ import annotations

from tallybook.gateway.console.diagnosing import OLD_SECONDS, WATCHING, Diagnosing
from tallybook.repair.diagnosis.look import Round
from tallybook.repair.diagnosis.samples import Point, Sample


def looked(at: float) -> Round:
    points = [
        Point("tallybook_bookie_streams", frozenset(), 0),
        Point("tallybook_bookie_add_batches_total", frozenset(), at),
    ]
    return Round({"b1": Sample("b1", at, points)}, {"g1": "no answer"})


def test_two_looks_five_seconds_apart_make_a_verdict_with_its_age_and_its_silent_processes():
    diagnosing = Diagnosing()
    for at in (0.0, 2.0, 4.0):
        diagnosing.note(at, looked(at))
        assert diagnosing.told(at, "")["sentence"] == WATCHING
    for at in (6.0, 8.0, 10.0, 12.0):
        diagnosing.note(at, looked(at))
        assert 5 <= diagnosing.told(at, "")["seconds"] <= 7
    told = diagnosing.told(15.0, "")
    assert (told["verdict"], told["age_s"], told["silent"]) == ("client-bound", 3.0, {"g1": "no answer"})


def test_a_verdict_of_long_ago_is_none():
    diagnosing = Diagnosing()
    for at in (0.0, 6.0):
        diagnosing.note(at, looked(at))
    old = 6.0 + OLD_SECONDS + 1
    assert diagnosing.told(old, "")["verdict"] is None
    assert diagnosing.told(old, "nobody answers")["sentence"] == "not known: nobody answers"
    diagnosing.note(old, looked(old))
    assert diagnosing.told(old, "")["verdict"] is None, "the look before this one says nothing of now"
