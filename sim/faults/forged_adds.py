"""Fault ``contradict``: a client sends other bytes for entries that a bookie holds, with the right key or a wrong one.

No real client does this. The bookie must refuse it, or confirmed entries could be overwritten.
"""

from __future__ import annotations

from tallybook.bookie.bookie import Bookie
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer
from tallybook.core.batch import encode_batch
from tallybook.core.errors import OK_CODE, Conflict
from tallybook.core.keys import ledger_key
from tallybook.runtime.rng import Rng

from ..oracle.oracle import Oracle
from ..workload.ledgers import PASSWORD


def contradict(bookie: Bookie, oracle: Oracle, rng: Rng) -> None:
    """Send one forged batch to ``bookie``, if it holds any batch; an ack is a violation (I8)."""
    found = oracle.acked_last(bookie.bookie_id, bookie.incarnation)
    if not found:
        return
    ledger_id, first = found[rng.randint(0, len(found) - 1)]
    known = oracle.ledgers[ledger_id]
    count, salt = known.batches[first].count, known.metadata.key_salt
    guarded = bool(known.metadata.key_verifier)
    fits = not guarded or rng.random() < 0.5
    key = ledger_key(PASSWORD if fits else b"guessed", salt) if guarded else b""
    batch = encode_batch(ledger_id, first, [b"forged"] * count, lac=-1, ledger_length=6 * count, written_at_us=0)

    def answered(answer: AddAnswer) -> None:
        oracle.mark("bookie: got other bytes for an entry that it has")
        if answer.code == OK_CODE:
            oracle.violated("I8", f"{bookie.bookie_id} acks other bytes for entry {first} of ledger {ledger_id}")
        elif answer.code == Conflict.wire_code and not fits:
            oracle.violated(
                "I23", f"{bookie.bookie_id} compares entries of ledger {ledger_id} although the key is wrong"
            )

    bookie.add(batch, key, answered, kind=AddKind.RECOVERY if rng.random() < 0.5 else AddKind.ORDINARY)
