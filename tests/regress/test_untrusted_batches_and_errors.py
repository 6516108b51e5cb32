"""A batch or error message that no process of ours sends is refused, or reported as the fault of its sender."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from tallybook.core.batch import encode_batch, verify_batch
from tallybook.core.errors import InvalidBatch, TallybookError
from tallybook.proto import bookie_pb2 as pb
from tallybook.wire.messages import decode_reply, decode_welcome


def test_a_batch_from_before_any_time_is_refused():
    """One that could not be put together again could never be archived."""
    batch = bytearray(encode_batch(7, 0, [b"x"], lac=-1, ledger_length=1, written_at_us=0))
    struct.pack_into("<q", batch, 48, -(2**63))
    struct.pack_into("<I", batch, 60, crc32c(bytes(batch[64:]), crc32c(bytes(batch[:60]))))
    with pytest.raises(InvalidBatch, match="time of writing"):
        verify_batch(bytes(batch))


def test_a_defect_of_a_bookie_is_none_of_the_client():
    failure = pb.Failure(code=900, message="broken")
    outcome = decode_reply(pb.Reply(request_id=1, failure=failure).SerializeToString()).outcome
    assert type(outcome) is TallybookError
    with pytest.raises(TallybookError) as raised:
        decode_welcome(pb.Reply(failure=failure).SerializeToString())
    assert raised.type is TallybookError
