"""The steps of an entry, and the functions that each of them consists of.

The innermost frame of a stack that the table lists decides; functions that are not listed, such as helpers, count as
the step that called them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from enum import Enum
from typing import Final

from .stacks import Frame, Stack


class Step(Enum):
    """A step, in the order in which an entry passes them; the value is its title on the page."""

    LOAD = "load program"
    APPEND = "append call"
    ACCUMULATE = "accumulate"
    ENCODE = "encode"
    QUEUE = "queue for each bookie"
    SEND = "send"
    POLLER = "gRPC: polling thread"
    GRPC_THREADS = "gRPC: other threads"
    RECEIVE = "receive"
    VERIFY = "verify"
    ADMISSION = "admission"
    JOURNAL_COPY = "copy to journal block"
    WRITE_CACHE = "write cache"
    DEVICE_WRITE = "device write"
    JOURNAL_DONE = "journal: report written block"
    ACK = "ack"
    CONFIRM = "confirm (writer machine)"
    RESOLVE = "resolve futures"
    TIMERS = "timers of writers"
    READ_CALL = "read call"
    SERVE_READ = "serve read requests"
    FIND_BATCH = "find the batch"
    READ_LOG = "read entry log"
    DECODE = "decode entries"
    FLUSH = "flush (checkpoint, entry log)"
    INDEX = "index"
    METADATA = "metadata store"
    LOOP_GRPC = "gRPC: completions in the event loop"
    EVENT_LOOP = "event loop itself"
    OTHER = "other"


WHOLE_FILES: Final[Mapping[str, Step]] = {
    "bench/loads/steady_reads.py": Step.LOAD,
    "bench/loads/tail_reads.py": Step.LOAD,
    "bench/operation/crowd.py": Step.LOAD,
    "bookie/directories/disk_monitor.py": Step.OTHER,
    "bookie/ledgers/": Step.ADMISSION,
    "bookie/read/": Step.FIND_BATCH,
    "bookie/rpc/add_stream.py": Step.RECEIVE,
    "bookie/rpc/attached_ledgers.py": Step.RECEIVE,
    "bookie/rpc/request_stream.py": Step.SERVE_READ,
    "bookie/storage/": Step.FLUSH,
    "bookie/storage/entry_log/reader.py": Step.READ_LOG,
    "bookie/storage/flushed_batches.py": Step.FIND_BATCH,
    "bookie/storage/index/": Step.INDEX,
    "bookie/storage/open_files.py": Step.READ_LOG,
    "bookie/storage/read_ahead.py": Step.READ_LOG,
    "bookie/storage/read_cache.py": Step.FIND_BATCH,
    "bookie/storage/write_cache.py": Step.WRITE_CACHE,
    "bookie/write/": Step.ADMISSION,
    "bookie/write/pending_acks.py": Step.ACK,
    "cli/measure/adds.py": Step.LOAD,
    "cli/measure/pacing.py": Step.LOAD,
    "cli/measure/reads.py": Step.LOAD,
    "client/budget.py": Step.APPEND,
    "client/connection/add_stream.py": Step.SEND,
    "client/connection/add_window.py": Step.SEND,
    "client/connection/connection.py": Step.READ_CALL,
    "client/connection/lac_updates.py": Step.TIMERS,
    "client/connection/request_stream.py": Step.READ_CALL,
    "client/reader/": Step.READ_CALL,
    "client/reader/entries.py": Step.DECODE,
    "client/writer/": Step.QUEUE,
    "client/writer/explicit_lacs.py": Step.TIMERS,
    "client/writer/loop_attention.py": Step.TIMERS,
    "client/writer/timer.py": Step.TIMERS,
    "metadata/": Step.METADATA,
    "wire/stream_sender.py": Step.SEND,
}
"""Files, and folders with a slash at the end. The longest path that fits counts."""

_FUNCTIONS: Final[Mapping[Step, Mapping[str, str]]] = {
    Step.APPEND: {
        "client/writer/handle.py": "LedgerWriter.append LedgerWriter.append_nowait LedgerWriter.append_many",
        "client/writer/appends.py": "Appends.admissible Appends.refuse_after_end Appends.take_budget",
    },
    Step.ACCUMULATE: {
        "client/writer/appends.py": (
            "Appends.gather Accumulator.add Accumulator.take Accumulator.worth_sending Accumulator._fresh"
            " AppendGroup.__init__ AppendGroup.add PendingAppend.__init__ Appends._flush"
        ),
    },
    Step.ENCODE: {
        "client/writer/appends.py": "Appends._seal AppendGroup.seal",
        "core/batch.py": "encode_batch",
        "wire/batches.py": "FrameCache.frame",
    },
    Step.QUEUE: {
        "client/connection/add_stream.py": "AddStream.add",
        "client/connection/connection.py": "BookieRpc.add",
    },
    Step.SEND: {
        "grpc/aio/_call.py": "_StreamRequestMixin._write _StreamRequestMixin.write",
        "runtime/grpc/stream_client.py": "_ClientStream.send",
        "runtime/grpc/stream_server.py": "_ServerStream.send",
        "runtime/tcp/stream.py": "TcpStream.send",
    },
    Step.RECEIVE: {
        "grpc/aio/_call.py": "_StreamResponseMixin._read _StreamResponseMixin.read",
        "client/connection/add_stream.py": "AddStream.receive",
        "runtime/grpc/stream_client.py": "_ClientStream.receive",
        "runtime/grpc/stream_server.py": "_ServerStream.receive",
        "runtime/tcp/framing.py": "FrameReader.space FrameReader.filled FrameReader._cut",
        "runtime/tcp/stream.py": "TcpStream.receive TcpStream.get_buffer TcpStream.buffer_updated",
        "wire/batches.py": "split_batches",
        "wire/messages.py": "decode_adds decode_acks",
    },
    Step.VERIFY: {"core/batch.py": "verify_batch"},
    Step.ADMISSION: {"bookie/rpc/add_stream.py": "AddStreamServer._add"},
    Step.JOURNAL_COPY: {
        "bookie/journal/group_commit.py": "GroupCommit.put GroupCommit._fill OpenBlock.add OpenBlock.move_rest",
        "bookie/journal/journal.py": "Journal.append",
        "bookie/write/pending_acks.py": "PendingAcks.append",
    },
    Step.DEVICE_WRITE: {
        "bookie/journal/group_commit.py": "GroupCommit.take",
        "runtime/disk/os_file.py": "RealFile.write_aligned",
        "runtime/disk/os_pump.py": "ThreadPump._pump ThreadPump._sleep ThreadPump.kick",
    },
    Step.JOURNAL_DONE: {
        "bookie/journal/group_commit.py": "GroupCommit.done",
        "bookie/journal/journal.py": "Journal._committed",
        "runtime/disk/os_pump.py": "ThreadPump._drain",
    },
    Step.ACK: {"bookie/rpc/add_stream.py": "AddStreamServer._answered AddStreamServer._compose"},
    Step.CONFIRM: {
        "client/connection/add_stream.py": "AddStream._acked AddStream._note_acked",
        "client/writer/bookie_link.py": "BookieLink._answered",
        "client/writer/machine.py": "WriterMachine.acked WriterMachine._confirm_head WriterMachine._retire_if_done",
        "client/writer/outbox.py": "MemberOutbox.acked",
    },
    Step.RESOLVE: {
        "client/writer/appends.py": (
            "Appends.confirmed PendingAppend.__await__ SharedOutcome.complete SharedOutcome.on_complete"
            " SharedOutcome.wait"
        ),
    },
    Step.READ_LOG: {"runtime/disk/os_file.py": "DiskThreads.read"},
    Step.FLUSH: {"runtime/disk/os_file.py": "DiskThreads.write"},
    Step.DECODE: {"core/batch.py": "entries cut_entry payload_slices"},
    Step.EVENT_LOOP: {"asyncio/runners.py": "Runner.run"},
}
"""Functions, in the files that define them. They count before whole files."""

BY_FUNCTION: Final = {
    (file, function): step
    for step, files in _FUNCTIONS.items()
    for file, functions in files.items()
    for function in functions.split()
}

_THREADS: Final = {
    "Thread-1 (_poll_wrapper)": Step.POLLER,
    "grpc_global_tim": Step.GRPC_THREADS,
    "event_engine": Step.GRPC_THREADS,
    "lifeguard": Step.GRPC_THREADS,
    "resolver-execut": Step.GRPC_THREADS,
    "rocksdb": Step.INDEX,
    "index-": Step.INDEX,
    "tallybook-sqlite": Step.METADATA,
    "checkpoint": Step.FLUSH,
    "disk-write": Step.FLUSH,
    "disk-read": Step.READ_LOG,
    "pump-journal": Step.DEVICE_WRITE,
}
"""Beginnings of the names of threads, for stacks without a listed frame and for threads that Python does not know."""


def step_of_stack(stack: Stack) -> Step:
    """The step of the innermost listed frame; without one, that of the thread's name."""
    for frame in reversed(stack.frames):
        if (step := _step_of_frame(frame)) is not None:
            return step
    return step_of_thread(stack.thread_name)


def step_of_thread(name: str) -> Step:
    """The step of a thread by its name."""
    return next((step for start, step in _THREADS.items() if name.startswith(start)), Step.OTHER)


@functools.cache
def _step_of_frame(frame: Frame) -> Step | None:
    for (file, function), step in BY_FUNCTION.items():
        if function == frame.function and _is_in(frame.file, file):
            return step
    fitting = [path for path in WHOLE_FILES if _is_in(frame.file, path)]
    return WHOLE_FILES[max(fitting, key=len)] if fitting else None


def _is_in(file: str, path: str) -> bool:
    """Whether a file, as py-spy names it, is ``path`` or lies below that folder."""
    return f"/{file}".endswith(f"/{path}") or (path.endswith("/") and f"/{path}" in f"/{file}")
