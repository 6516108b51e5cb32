"""The blocking client with real bookies: its main uses, from one thread and from eight."""

from concurrent.futures import ThreadPoolExecutor

from tallybook.client.sync import Client

PATIENCE = 60


def test_a_program_without_asyncio_writes_follows_and_reads_a_ledger(cluster):
    with Client(cluster.metadata) as client:
        with ThreadPoolExecutor(1) as other, client.create_ledger() as ledger:
            assert ledger.append(b"hello") == 0
            tail = client.open_ledger(ledger.id, recover=False).tail()
            following = other.submit(lambda: [entry.payload for entry in tail])
            assert ledger.append_many([b"%d" % number for number in range(5_000)]) == range(1, 5_001)
            pending = [ledger.append_nowait(b"x" * 100) for _ in range(5_000)]
            assert [append.result(PATIENCE) for append in pending] == list(range(5_001, 10_001))
            ledger.close()
            followed = following.result(PATIENCE)
        reader = client.open_ledger(ledger.id)
        assert [entry.payload for entry in reader.read(0, reader.last_add_confirmed)] == followed
        assert followed == [b"hello", *(b"%d" % number for number in range(5_000)), *[b"x" * 100] * 5_000]
        assert ledger.id in client.list_ledgers()
        assert sorted(client.bookies()) == ["bookie-1", "bookie-2", "bookie-3"]


def test_eight_threads_append_to_one_ledger_and_their_entries_have_the_returned_ids(cluster):
    def append(thread):
        own = [b"%d %d" % (thread, number) for number in range(1_200)]
        sent = [ledger.append_nowait(payload) for payload in own[:600]]
        ids = [ledger.append(payload) for payload in own[600:620]]
        many = ledger.append_many(own[620:])
        return own, [*(pending.result(PATIENCE) for pending in sent), *ids, *many]

    with Client(cluster.metadata) as client:
        with client.create_ledger() as ledger, ThreadPoolExecutor(8) as threads:
            told = list(threads.map(append, range(8)))
        with Client(cluster.metadata) as another:
            reader = another.open_ledger(ledger.id)
            written = [entry.payload for entry in reader.read(0, reader.last_add_confirmed)]
    for own, ids in told:
        assert ids == sorted(ids)
        assert [written[entry_id] for entry_id in ids] == own
    assert sorted(entry_id for _, ids in told for entry_id in ids) == list(range(8 * 1_200))
