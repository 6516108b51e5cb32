"""Memory growth of an encoder for a ledger with ten times as many batches as a large ledger; without a cluster.

    python -m tallybook.bench.archive.encoder_load --mib 1024

The growing part is the index at the end of an object with the locations of its pages. Prints one line of JSON.
"""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from tallybook.archive.encoder import ObjectEncoder
from tallybook.core.batch import decode_header, seal_batch
from tallybook.core.limits import KIB, MIB
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tuning import tune_process

from ..equipment.proc import peak_memory_bytes
from ..equipment.programs import print_json_line

TIMES: Final = 10
_ENTRY_BYTES: Final = 1 * KIB
_BATCH_ENTRIES: Final = 512


def main(mib: Annotated[int, typer.Option(help="Payload of a large ledger.")] = 1024) -> None:
    """Encode, discard the output, and print the memory that the second to the tenth part took."""
    tune_process()
    encoder, peaks = ObjectEncoder("an-object", 0), []
    encoder.begin(1, b"")
    source = SeededRng(1).token(MIB)
    payloads = [source[at : at + _ENTRY_BYTES] for at in range(0, _BATCH_ENTRIES * _ENTRY_BYTES, _ENTRY_BYTES)]
    first, length = 0, 0
    for _ in range(TIMES):
        for _ in range(mib * MIB // (_BATCH_ENTRIES * _ENTRY_BYTES)):
            length += _BATCH_ENTRIES * _ENTRY_BYTES
            batch = seal_batch(1, first, payloads, lac=first - 1, ledger_length=length, written_at_us=first)
            encoder.add(batch, decode_header(batch))
            encoder.take()
            first += _BATCH_ENTRIES
        peaks.append(peak_memory_bytes(os.getpid()))
    encoder.end()
    encoder.finish()
    peaks.append(peak_memory_bytes(os.getpid()))
    print_json_line({"encoder_growth_mib": round((peaks[-1] - peaks[0]) / MIB, 1)})


if __name__ == "__main__":
    typer.run(main)
