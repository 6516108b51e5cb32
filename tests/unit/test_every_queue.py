"""Every queue and cache of the product has a metric for its fill level, or is excused with a reason.

They are recognized by their types (``deque``, ``OrderedDict``, ``LRUCache``, queues, ``lru_cache``) and named by the
attribute that has them. Add a new one to ``SHOWN``, or to ``EXCUSED`` below.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallybook.cli.metric_catalogs import ALL_CATALOGS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "core", "runtime", "wire", "metadata", "archive", "bookie", "client", "offload", "repair", "stream", "spark",
    "gateway", "cli",
)  # fmt: skip
ELSEWHERE = ("sim/*", "bench/*", "cli/demo/*")
"""Equipment of tests, and a play."""

MADE_OF = frozenset({
    "deque", "OrderedDict", "LRUCache", "LFUCache", "TTLCache", "FIFOCache", "Queue", "PriorityQueue", "LifoQueue",
    "SimpleQueue",
})  # fmt: skip
REMEMBER = frozenset({"lru_cache", "cache"})
"""Decorators that cache results."""

SHOWN = {
    "archive/objects/encryption/store.py:EncryptedStore.headers": "tallybook_archive_seals",
    "archive/reader.py:ArchiveReader._index": "tallybook_archive_cache_bytes",
    "archive/reader.py:ArchiveReader._pages": "tallybook_archive_cache_bytes",
    "bookie/write/pending_acks.py:_JournalQueue.pending": "tallybook_bookie_inflight_bytes",
    "bookie/journal/group_commit.py:GroupCommit._commits": "tallybook_journal_queued_bytes",
    "bookie/journal/group_commit.py:GroupCommit._waiting": "tallybook_journal_queued_bytes",
    "bookie/journal/segment_recycler.py:SegmentRecycler.ready": "tallybook_journal_max_queued_bytes",
    "bookie/ledgers/table.py:LedgerTable._idle": "tallybook_bookie_ledgers_in_memory",
    "bookie/rpc/request_stream.py:RequestStreamServer._replies": "tallybook_bookie_answer_bytes",
    "bookie/ledgers/confirmed_prefix.py:ConfirmedPrefixes._known": "tallybook_bookie_settled_ledgers",
    "bookie/storage/open_files.py:OpenFiles._entries": "tallybook_bookie_open_entry_logs",
    "bookie/storage/read_ahead.py:ReadAhead._streams": "tallybook_bookie_read_ahead_bytes",
    "bookie/storage/read_ahead.py:ReadAhead._waiting": "tallybook_bookie_read_ahead_bytes",
    "bookie/storage/read_ahead.py:ReadAhead._wanted": "tallybook_bookie_read_ahead_bytes",
    "bookie/storage/read_ahead.py:_Piece.batches": "tallybook_bookie_read_ahead_bytes",
    "bookie/storage/read_ahead.py:_Stream.pieces": "tallybook_bookie_read_ahead_bytes",
    "bookie/storage/read_ahead.py:_pieces.piece": "tallybook_bookie_read_ahead_bytes",
    "bookie/storage/entry_tables.py:EntryTables._tables": "tallybook_bookie_entry_tables_bytes",
    "bookie/storage/read_cache.py:ReadCache._ghosts": "tallybook_bookie_read_cache_bytes",
    "bookie/storage/read_cache.py:_Queue.items": "tallybook_bookie_read_cache_bytes",
    "client/budget.py:ByteBudget._waiters": "tallybook_client_no_room_total",
    "client/connection/add_stream.py:AddStream._queue": "tallybook_client_pending_bytes",
    "client/writer/appends.py:Accumulator._groups": "tallybook_client_pending_bytes",
    "client/writer/appends.py:Appends._groups": "tallybook_client_pending_bytes",
    "gateway/credit.py:Credit._unacknowledged": "tallybook_gateway_reserved_bytes",
    "gateway/bidirectional.py:AckPipeline.queue": "tallybook_gateway_reserved_bytes",
    "metadata/sqlite/database.py:Database._waiting": "tallybook_metadata_write_under_way",
    "runtime/concurrency/weighted_semaphore.py:WeightedSemaphore._waiting": "tallybook_bookie_answer_bytes",
    "stream/records/dedup.py:DedupWindow._known": "tallybook_gateway_id_bytes",
    "stream/reader/tails.py:SharedTail._kept": "tallybook_stream_tail_bytes",
    "stream/writer/flow.py:RecordFlow._full": "tallybook_client_pending_bytes",
    "stream/writer/flow.py:RecordFlow._sent": "tallybook_client_pending_bytes",
}
"""Queues and caches with the metric of their fill level."""

EXCUSED = {
    "bookie/background/pace.py:_Kind._quiet": "fifteen numbers",
    "bookie/background/pace.py:BackgroundPace._requests": "four numbers",
    "archive/encoder.py:ObjectEncoder._full": "two row groups of the one object that is packed",
    "archive/objects/cloud/s3_writes.py:MultipartUpload._sending": "a few parts of an upload; requests are metered",
    "archive/object_writer.py:write_object.encode.chunks": "what the encoder gave at once, of one object",
    "archive/object_writer.py:write_object": "the end of one object",
    "runtime/tcp/stream.py:TcpStream._messages": "received messages of one stream, of at most 8 MiB",
    "bookie/rpc/attached_ledgers.py:AttachedLedgers._lost": "attachments that may come back within a minute",
    "bookie/rpc/attached_ledgers.py:StreamAttachments._ledgers": "of one stream, bounded by the protocol",
    "bookie/ledgers/over_replicated.py:RepairVisits._last": "times of repairs; forgetting one only waits longer",
    "bookie/rpc/request_stream.py:RequestStreamServer._audited": "ids of one stream, so that the audit log is short",
    "bookie/storage/read_ahead.py:ReadAhead._candidates": "a thousand pairs of ids",
    "cli/lines/feed.py:LineFeeder._window": "of a command, which shows its progress itself",
    "bookie/ledgers/verified_copies.py:VerifiedCopies._of": "100,000 ranges of ledgers in doubt",
    "gateway/console/ledger_index.py:LedgerIndex._rows": "the ledgers of one census, at most MAX_INDEXED",
    "stream/records/compression.py:_pyarrow": "one module, imported at the first compressed batch",
    "client/reader/machine.py:SpeculationPolicy._answers": "the last times of one reader",
    "client/recovery/driver.py:_RecoveryRun._events": "a few answers for each bookie of one recovery",
    "client/reader/entries.py:EntryGroups._batches": "batches of one answer, which ``read_bytes`` bounds",
    "client/connection/add_stream.py:AddStream._ack_times": "128 pairs of numbers for each connection",
    "client/connection/add_stream.py:AddStream._attached": "ledgers of one stream, bounded by the protocol",
    "client/connection/add_stream.py:AddStream._to_attach": "one for each open ledger, until the next messages",
    "client/connection/add_stream.py:AddStream._detached": "ledgers of one stream, until the next messages",
    "client/connection/lac_updates.py:LacSender._waiting": "one LAC for each open ledger of the client",
    "client/writer/ensemble/metadata_queue.py:MetadataQueue._urgent": "one for each writer of the client",
    "client/writer/ensemble/metadata_queue.py:MetadataQueue._others": "one for each writer of the client",
    "client/connection/request_stream.py:RequestStream._queue": "as many as a bookie lets one stream ask at once",
    "gateway/console/diagnosis.py:DiagnosisTracker._samples": "the samples of the last minutes",
    "repair/replicator.py:_TaskRun._todo": "the ledgers of one task, which its board bounds",
    "client/writer/loop_attention.py:LoopAttention._stalls": "at most 256 moments in which the event loop was late",
    "client/writer/explicit_lacs.py:ExplicitLacs._queue": "one pair for each writer that appended a moment ago",
    "runtime/blocking/loop_thread.py:ThreadHandOff._items": "bounded by the pending bytes of the client",
    "runtime/disk/os_pump.py:ThreadPump._completed": "writes of the journal that are durable and not told yet",
    "runtime/blocking/iteration.py:ItemIterator._left": "what is left of one group of items",
    "runtime/blocking/iteration.py:LoopIterator._found": "what has crossed over to one thread at a time",
    "runtime/blocking/iteration.py:Producer._items": "a few items ahead of one thread",
    "runtime/concurrency/loop_slices.py:SlicedCallbacks._due": "one callback for each writer with something to do",
    "runtime/concurrency/async_iterators.py:ItemReader._left": "what is left of one group of items",
    "runtime/security/tls_contexts.py:server_material": "four TLS contexts",
    "wire/batches.py:FrameCache._frames": "two MiB of what was sent last, for each client",
    "stream/deliveries.py:Deliveries._append.pending": "records of one batch, within the budget of a client",
    "stream/reader/handle.py:StreamReader._taken": "what one step has brought",
    "stream/writer/segments.py:WriterSegments._full": "segments of one stream that are not sealed yet",
}
"""Why it has none."""


def containers(tree: ast.AST, owner: str = "", kept: str = "") -> Iterator[str]:
    """Names of queues and caches in a module: ``Class.attribute``, ``function.variable``."""
    for node in ast.iter_child_nodes(tree):
        inner, place = owner, kept
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner, place = f"{owner}.{node.name}".strip("."), ""
            if any(is_one(getattr(each, "func", each), REMEMBER) for each in node.decorator_list):
                yield inner
            if isinstance(node, ast.ClassDef) and any(is_one(getattr(base, "value", base)) for base in node.bases):
                yield inner
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            place = named(target, owner)
        elif (isinstance(node, ast.Call) and is_made(node)) or (
            isinstance(node, ast.keyword) and node.arg == "default_factory" and is_one(node.value)
        ):
            yield kept or owner
        yield from containers(node, inner, place)


def named(target: ast.expr, owner: str) -> str:
    """The name of a queue or cache. An attribute belongs to the class, whichever method creates it."""
    if isinstance(target, ast.Tuple):
        target = target.elts[-1]
    if isinstance(target, ast.Attribute):
        return f"{owner.rpartition('.')[0]}.{target.attr}"
    return f"{owner}.{target.id}".strip(".") if isinstance(target, ast.Name) else owner


def is_made(call: ast.Call) -> bool:
    made = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    return is_one(made)


def is_one(node: ast.AST, kinds: frozenset[str] = MADE_OF) -> bool:
    return (node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")) in kinds


@functools.cache
def all_containers() -> set[str]:
    found = set()
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = file.relative_to(ROOT)
            if not any(path.match(pattern) for pattern in ELSEWHERE):
                found |= {f"{path.as_posix()}:{name}" for name in containers(ast.parse(file.read_text()))}
    return found


def test_every_queue_and_cache_is_shown_by_a_metric_or_excused():
    assert len(all_containers()) > 40
    assert sorted(all_containers() - set(SHOWN) - set(EXCUSED)) == []


def test_what_is_said_to_be_shown_or_excused_is_there():
    assert sorted((set(SHOWN) | set(EXCUSED)) - all_containers()) == []
    assert sorted(set(SHOWN) & set(EXCUSED)) == []
    assert all(EXCUSED.values())


def test_what_a_queue_or_cache_is_shown_by_is_in_a_catalog():
    names = {info.name for catalog in ALL_CATALOGS.values() for info in catalog}
    assert sorted(set(SHOWN.values()) - names) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class A:\n    def __init__(self):\n        self._a: deque[int] = deque()", ["A._a"]),
        ("class A:\n    a: deque[int] = field(default_factory=deque)", ["A.a"]),
        ("class A:\n    def f(self):\n        self.a = self.b or asyncio.Queue(5)", ["A.a"]),
        ("def f():\n    a = collections.deque[int](maxlen=3)", ["f.a"]),
        ("def f():\n    return deque()", ["f"]),
        ("A = OrderedDict()", ["A"]),
        ("@lru_cache\ndef f(): ...", ["f"]),
        ("@functools.lru_cache(maxsize=4)\ndef f(): ...", ["f"]),
        ("class A(OrderedDict[int, int]): ...", ["A"]),
        ("def f(a: deque[int]) -> OrderedDict[int, int]: ...", []),
    ],
)
def test_a_queue_or_cache_is_known_by_what_it_is_made_of(source: str, found: list[str]):
    assert list(containers(ast.parse(source))) == found
