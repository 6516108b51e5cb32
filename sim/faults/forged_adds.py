"""Somebody who sends a bookie other bytes for entries that it holds: with the right key, or with one that does not fit.

No client of this project does so. The bookie has to refuse it all the same, or what was confirmed
could be replaced by it.
"""

from __future__ import annotations

from tallybook.bookie.bookie import Bookie
from tallybook.core.answers import AddAnswer
from tallybook.core.batch import encode_batch
from tallybook.core.errors import OK_CODE, Conflict
from tallybook.core.keys import ledger_key
from tallybook.runtime.rng import Rng

from .god import God
from .workload import PASSWORD


def contradict(bookie: Bookie, god: God, rng: Rng) -> None:
    """Send one such batch to ``bookie``, if it holds any batch at all; an ack of it is a violation."""
    found = god.acked_last(bookie.bookie_id, bookie.incarnation)
    if not found:
        return
    ledger_id, first = found[rng.randint(0, len(found) - 1)]
    known = god.ledgers[ledger_id]
    count, salt = known.batches[first].count, known.metadata.key_salt
    guarded = bool(known.metadata.key_verifier)
    fits = not guarded or rng.random() < 0.5
    key = ledger_key(PASSWORD if fits else b"guessed", salt) if guarded else b""
    batch = encode_batch(ledger_id, first, [b"forged"] * count, lac=-1, ledger_length=6 * count, written_at_us=0)

    def answered(answer: AddAnswer) -> None:
        god.mark("bookie: other bytes offered for what it holds")
        if answer.code == OK_CODE:
            god.violated("I8", f"{bookie.bookie_id} acks other bytes for entry {first} of ledger {ledger_id}")
        elif answer.code == Conflict.wire_code and not fits:
            god.violated(
                "I23", f"{bookie.bookie_id} looks at entries of ledger {ledger_id} for a key that does not fit"
            )

    bookie.add(batch, key, answered, recovery=rng.random() < 0.5)
