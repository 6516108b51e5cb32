"""Blocking streams with real bookies: their main uses, from one thread and from eight."""

from concurrent.futures import ThreadPoolExecutor

from tallybook.client.sync import Client
from tallybook.stream.sync import Start, StreamStore

PATIENCE = 60


def test_a_program_without_asyncio_writes_follows_and_reads_a_stream(cluster):
    with Client(cluster.metadata) as client, StreamStore(client, name="blocking") as streams:
        streams.create("sync/one")
        with ThreadPoolExecutor(1) as other, streams.reader("sync/one") as reader:
            following = other.submit(lambda: [record.payload for record in reader])
            with streams.writer("sync/one") as writer:
                first = writer.append(b"hello", if_position=None)
                many = writer.append_many([b"%d" % number for number in range(5_000)])
                pending = [writer.append_nowait(b"x" * 100, dedup_id=b"%d" % number) for number in range(5_000)]
                positions = [first, *many, *(append.result(PATIENCE) for append in pending)]
                writer.seal()
            followed = following.result(PATIENCE)
        assert followed == [b"hello", *(b"%d" % number for number in range(5_000)), *[b"x" * 100] * 5_000]
        assert [record.position for record in streams.reader("sync/one", follow=False)] == positions
        assert [record.sequence for record in streams.reader("sync/one", start=Start.at(positions[9_990]))] == [
            *range(9_990, 10_001)
        ]
        assert "sync/one" in streams.list("sync/")


def test_eight_threads_append_to_one_stream_and_their_records_have_the_returned_positions(cluster):
    def append(thread):
        own = [b"%d %d" % (thread, number) for number in range(1_200)]
        sent = [writer.append_nowait(payload) for payload in own[:600]]
        positions = [writer.append(payload) for payload in own[600:620]]
        many = writer.append_many(own[620:])
        return own, [*(pending.result(PATIENCE) for pending in sent), *positions, *many]

    with Client(cluster.metadata) as client, StreamStore(client) as streams:
        streams.create("sync/eight")
        with streams.writer("sync/eight") as writer, ThreadPoolExecutor(8) as threads:
            told = list(threads.map(append, range(8)))
        with Client(cluster.metadata) as another, StreamStore(another) as others:
            there = {record.position: record.payload for record in others.reader("sync/eight", follow=False)}
    for own, positions in told:
        assert positions == sorted(positions)
        assert [there[position] for position in positions] == own
    assert len(there) == 8 * 1_200


def test_a_subscriber_goes_on_where_another_process_has_stopped(cluster):
    with Client(cluster.metadata) as client, StreamStore(client) as streams:
        streams.create("sync/subscribed")
        with streams.writer("sync/subscribed") as writer:
            writer.append_many([b"%d" % number for number in range(100)])
        with streams.subscribe("sync/subscribed", "billing") as billing:
            for record in billing:
                billing.advance_nowait(record.position)
                if record.sequence == 41:
                    break
    with (
        Client(cluster.metadata) as client,
        StreamStore(client) as streams,
        streams.subscribe("sync/subscribed", "billing", wait_s=0, follow=False) as billing,
    ):
        assert [record.sequence for record in billing] == [*range(42, 100)]
