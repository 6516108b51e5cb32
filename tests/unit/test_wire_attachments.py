"""Add streams with many ledgers: attachments, shared messages, and from when acks are due."""

import pytest

from tallybook.core.answers import AddAnswer
from tallybook.wire import messages as wire
from tallybook.wire.batches import FORMERLY_ATTACHED_LEDGERS, MAX_ADD_COST_BYTES, MAX_ATTACHES, add_cost_bytes
from tallybook.wire.lanes import Lane

from .test_wire_client import WELCOME, Answers, batch, connected, scripted


@connected()
async def test_a_ledger_is_attached_before_its_first_batch_and_again_with_another_key(bookie, connection):
    attached = []
    for first, (ledger_id, key) in enumerate([(1, b"a"), (1, b"a"), (2, b"b"), (1, b"a"), (1, b"c"), (1, b"a")]):
        connection.add(batch(first, ledger_id=ledger_id), key, Answers())
        attach, batches = await bookie.adds()
        attached.append(attach)
        assert batches == [batch(first, ledger_id=ledger_id)]
    assert attached == [
        wire.Attach(1, b"a"), None, wire.Attach(2, b"b"), None, wire.Attach(1, b"c"), wire.Attach(1, b"a")
    ]  # fmt: skip


@connected()
async def test_a_ledger_that_a_bookie_of_before_has_forgotten_is_attached_again(bookie, connection):
    for ledger_id in (*range(FORMERLY_ATTACHED_LEDGERS + 1), 1, 0):
        connection.add(batch(0, ledger_id=ledger_id), b"k", Answers())
    attached = []
    for _ in range(FORMERLY_ATTACHED_LEDGERS + 1):
        attached.append((await bookie.adds())[0])
        assert attached[-1] is not None
    # Ledger 1 is still known, and goes with the one before it; ledger 0 was attached first of all and is forgotten.
    last = await bookie.adds()
    if last[0] is None:
        last = await bookie.adds()
    assert last == (wire.Attach(0, b"k"), [batch(0, ledger_id=0)])


@connected(max_attached=10_000)
async def test_batches_of_many_ledgers_share_a_message_with_their_attachments(bookie, connection):
    for ledger_id in range(3 * MAX_ATTACHES):
        connection.add(batch(0, ledger_id=ledger_id), b"k", Answers())
    messages = [wire.decode_adds(await bookie.heard[Lane.ADD].get()) for _ in range(3)]
    assert [len(message.attaches) for message in messages] == [MAX_ATTACHES] * 3
    assert [len(message.batches) for message in messages] == [MAX_ATTACHES] * 3
    for ledger_id in range(3 * MAX_ATTACHES):
        connection.add(batch(1, ledger_id=ledger_id), b"k", Answers())
    again = wire.decode_adds(await bookie.heard[Lane.ADD].get())
    assert (len(again.attaches), len(again.batches)) == (0, 3 * MAX_ATTACHES), "all are remembered"


@pytest.mark.parametrize("max_attached", [0, 10_000])
@scripted()
async def test_a_ledger_with_another_key_does_not_join_the_message_of_its_earlier_batch(bookie, *, max_attached):
    bookie.welcomes[Lane.ADD] = WELCOME._replace(max_attached=max_attached)
    connection = await bookie.open()
    for first, key in enumerate((b"a", b"b", b"a")):
        connection.add(batch(first), key, Answers())
    seen = [await bookie.adds() for _ in range(3)]
    assert seen == [(wire.Attach(1, key), [batch(first)]) for first, key in enumerate((b"a", b"b", b"a"))]
    await connection.close()


@connected(max_attached=2)
async def test_an_attachment_that_would_have_the_bookie_forget_a_ledger_of_the_same_message_waits(bookie, connection):
    for ledger_id in (1, 2, 3):
        connection.add(batch(0, ledger_id=ledger_id), b"k", Answers())
    first, second = [wire.decode_adds(await bookie.heard[Lane.ADD].get()) for _ in range(2)]
    assert [[each.ledger_id for each in message.attaches] for message in (first, second)] == [[1, 2], [3]]


@connected(max_attached=10_000)
async def test_a_ledger_that_is_over_is_detached_and_attached_again_where_it_is_added_to_after_all(bookie, connection):
    for ledger_id in (1, 2):
        connection.add(batch(0, ledger_id=ledger_id), b"k", Answers())
    await bookie.adds()
    connection.forget(1)
    connection.forget(3)
    assert list(wire.decode_adds(await bookie.heard[Lane.ADD].get()).detached) == [1]
    connection.add(batch(1, ledger_id=2), b"k", Answers())
    connection.add(batch(1, ledger_id=1), b"k", Answers())
    again = wire.decode_adds(await bookie.heard[Lane.ADD].get())
    assert ([each.ledger_id for each in again.attaches], len(again.batches)) == ([1], 2)


@scripted()
async def test_a_batch_that_is_withdrawn_before_it_is_sent_never_leaves_and_is_not_reported(bookie):
    cost = add_cost_bytes(len(batch(0)))
    bookie.welcomes[Lane.ADD] = WELCOME._replace(credit_bytes=MAX_ADD_COST_BYTES)
    connection = await bookie.open()
    answers = Answers()
    full = MAX_ADD_COST_BYTES // cost
    sendings = [connection.add(batch(first), b"", answers) for first in range(full + 2)]
    seen = []
    while len(seen) < full:
        seen += (await bookie.adds())[1]
    sendings[-2].withdraw()
    sendings[0].withdraw()
    await bookie.ack(1, AddAnswer(1, 0, 1))
    assert (await bookie.adds())[1] == [batch(full + 1)]
    assert answers == [AddAnswer(1, 0, 1)]
    await connection.close()
    await bookie.settle()
    assert full not in [answer.first_entry_id for answer in answers]


@connected(credit_bytes=MAX_ADD_COST_BYTES)
async def test_an_ack_is_owed_from_when_the_bookie_passed_the_batch_over_or_fell_silent(bookie, connection):
    clock = bookie.world.clock
    full = MAX_ADD_COST_BYTES // add_cost_bytes(len(batch(0)))
    sendings = [connection.add(batch(first), b"", Answers()) for first in range(full + 100)]
    await bookie.settle()
    sent_at = connection.progress_at
    assert sendings[5].owed_since == sendings[-1].owed_since == sent_at
    await clock.sleep(10)
    for number in (1, 2, 3):
        await bookie.ack(number, AddAnswer(1, number - 1, 1))
    await bookie.settle()
    third = connection.progress_at
    assert third >= sent_at + 10
    assert sendings[5].owed_since == sendings[-1].owed_since == third, "it has come no further yet"
    await clock.sleep(10)
    await bookie.ack(8, AddAnswer(1, 7, 1))
    await bookie.settle()
    passed = connection.progress_at
    await clock.sleep(10)
    await bookie.ack(9, AddAnswer(1, 8, 1))
    await bookie.settle()
    assert sendings[5].owed_since == passed
    assert sendings[20].owed_since == sendings[-1].owed_since == connection.progress_at > passed


@connected(max_attached=10_000)
async def test_many_open_ledgers_to_which_nothing_is_added_share_messages_also_with_batches_of_others(
    bookie, connection
):
    for ledger_id in range(2, MAX_ATTACHES):
        connection.attach(ledger_id, b"k")
    connection.forget(3)
    connection.add(batch(0), b"k", Answers())
    first, second = [wire.decode_adds(await bookie.heard[Lane.ADD].get()) for _ in range(2)]
    attached = [each.ledger_id for message in (first, second) for each in message.attaches]
    assert sorted(attached) == [1, 2, *range(4, MAX_ATTACHES)]
    assert (len(first.batches), len(second.batches)) == (1, 0)
    connection.add(batch(0, ledger_id=2), b"k", Answers())
    assert wire.decode_adds(await bookie.heard[Lane.ADD].get()).attaches == ()


@connected()
async def test_an_older_bookie_gets_no_lacs_of_idle_ledgers(bookie, connection):
    connection.attach(2, b"k")
    connection.add(batch(0), b"k", Answers())
    assert await bookie.adds() == (wire.Attach(1, b"k"), [batch(0)])
