from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Incarnation(_message.Message):
    __slots__ = ("directory_uuid", "boot")
    DIRECTORY_UUID_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    directory_uuid: str
    boot: int
    def __init__(self, directory_uuid: _Optional[str] = ..., boot: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "cluster_id", "client_id", "expected", "newest_version")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    cluster_id: str
    client_id: str
    expected: Incarnation
    newest_version: int
    def __init__(self, protocol_version: _Optional[int] = ..., cluster_id: _Optional[str] = ..., client_id: _Optional[str] = ..., expected: _Optional[_Union[Incarnation, _Mapping]] = ..., newest_version: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "bookie_id", "incarnation", "credit_bytes", "max_requests", "max_waits", "max_batch_bytes", "max_attached", "tcp_port")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTACHED_FIELD_NUMBER: _ClassVar[int]
    TCP_PORT_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    bookie_id: str
    incarnation: Incarnation
    credit_bytes: int
    max_requests: int
    max_waits: int
    max_batch_bytes: int
    max_attached: int
    tcp_port: int
    def __init__(self, protocol_version: _Optional[int] = ..., bookie_id: _Optional[str] = ..., incarnation: _Optional[_Union[Incarnation, _Mapping]] = ..., credit_bytes: _Optional[int] = ..., max_requests: _Optional[int] = ..., max_waits: _Optional[int] = ..., max_batch_bytes: _Optional[int] = ..., max_attached: _Optional[int] = ..., tcp_port: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "message", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    retry_after_ms: int
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class AddRequest(_message.Message):
    __slots__ = ("hello", "attach", "traceparent", "attaches", "detached", "batches")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    ATTACHES_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    attach: Attach
    traceparent: str
    attaches: _containers.RepeatedCompositeFieldContainer[Attach]
    detached: _containers.RepeatedScalarFieldContainer[int]
    batches: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ..., traceparent: _Optional[str] = ..., attaches: _Optional[_Iterable[_Union[Attach, _Mapping]]] = ..., detached: _Optional[_Iterable[int]] = ..., batches: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("ledger_id", "key", "deferred", "identity")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    key: bytes
    deferred: bool
    identity: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., key: _Optional[bytes] = ..., deferred: _Optional[bool] = ..., identity: _Optional[bytes] = ...) -> None: ...

class AddReply(_message.Message):
    __slots__ = ("welcome", "acks", "failure")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    acks: _containers.RepeatedCompositeFieldContainer[AddAck]
    failure: Failure
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., acks: _Optional[_Iterable[_Union[AddAck, _Mapping]]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class AddAck(_message.Message):
    __slots__ = ("number", "ledger_id", "first_entry_id", "entry_count", "code", "retry_after_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    ledger_id: int
    first_entry_id: int
    entry_count: int
    code: int
    retry_after_ms: int
    def __init__(self, number: _Optional[int] = ..., ledger_id: _Optional[int] = ..., first_entry_id: _Optional[int] = ..., entry_count: _Optional[int] = ..., code: _Optional[int] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("hello", "request_id", "read_batches", "read_entry", "read_lac", "wait_lac", "fence", "recovery_read", "recovery_add", "write_lac", "force", "repair_add", "held", "damaged", "held_ledgers", "end_limbo", "status", "trace", "authorize", "write_lacs", "batches", "traceparent", "identity")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    READ_BATCHES_FIELD_NUMBER: _ClassVar[int]
    READ_ENTRY_FIELD_NUMBER: _ClassVar[int]
    READ_LAC_FIELD_NUMBER: _ClassVar[int]
    WAIT_LAC_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_READ_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_ADD_FIELD_NUMBER: _ClassVar[int]
    WRITE_LAC_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    REPAIR_ADD_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    HELD_LEDGERS_FIELD_NUMBER: _ClassVar[int]
    END_LIMBO_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZE_FIELD_NUMBER: _ClassVar[int]
    WRITE_LACS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    request_id: int
    read_batches: ReadBatches
    read_entry: ReadEntry
    read_lac: ReadLac
    wait_lac: WaitLac
    fence: Fence
    recovery_read: RecoveryRead
    recovery_add: RecoveryAdd
    write_lac: WriteLac
    force: Force
    repair_add: RepairAdd
    held: Held
    damaged: Damaged
    held_ledgers: HeldLedgers
    end_limbo: EndLimbo
    status: Status
    trace: Trace
    authorize: Authorize
    write_lacs: WriteLacs
    batches: _containers.RepeatedScalarFieldContainer[bytes]
    traceparent: str
    identity: bytes
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., request_id: _Optional[int] = ..., read_batches: _Optional[_Union[ReadBatches, _Mapping]] = ..., read_entry: _Optional[_Union[ReadEntry, _Mapping]] = ..., read_lac: _Optional[_Union[ReadLac, _Mapping]] = ..., wait_lac: _Optional[_Union[WaitLac, _Mapping]] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., recovery_read: _Optional[_Union[RecoveryRead, _Mapping]] = ..., recovery_add: _Optional[_Union[RecoveryAdd, _Mapping]] = ..., write_lac: _Optional[_Union[WriteLac, _Mapping]] = ..., force: _Optional[_Union[Force, _Mapping]] = ..., repair_add: _Optional[_Union[RepairAdd, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., damaged: _Optional[_Union[Damaged, _Mapping]] = ..., held_ledgers: _Optional[_Union[HeldLedgers, _Mapping]] = ..., end_limbo: _Optional[_Union[EndLimbo, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ..., authorize: _Optional[_Union[Authorize, _Mapping]] = ..., write_lacs: _Optional[_Union[WriteLacs, _Mapping]] = ..., batches: _Optional[_Iterable[bytes]] = ..., traceparent: _Optional[str] = ..., identity: _Optional[bytes] = ...) -> None: ...

class ReadBatches(_message.Message):
    __slots__ = ("ledger_id", "first", "last", "max_bytes", "background")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    first: int
    last: int
    max_bytes: int
    background: bool
    def __init__(self, ledger_id: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., max_bytes: _Optional[int] = ..., background: _Optional[bool] = ...) -> None: ...

class ReadEntry(_message.Message):
    __slots__ = ("ledger_id", "entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class ReadLac(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class WaitLac(_message.Message):
    __slots__ = ("ledger_id", "above", "timeout_ms", "max_bytes")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    above: int
    timeout_ms: int
    max_bytes: int
    def __init__(self, ledger_id: _Optional[int] = ..., above: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("ledger_id", "key")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    key: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class RecoveryRead(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "key", "max_bytes")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    key: bytes
    max_bytes: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., key: _Optional[bytes] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class RecoveryAdd(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...

class WriteLac(_message.Message):
    __slots__ = ("ledger_id", "lac", "key")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    lac: int
    key: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., lac: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class WriteLacs(_message.Message):
    __slots__ = ("lacs",)
    LACS_FIELD_NUMBER: _ClassVar[int]
    lacs: _containers.RepeatedCompositeFieldContainer[LedgerLac]
    def __init__(self, lacs: _Optional[_Iterable[_Union[LedgerLac, _Mapping]]] = ...) -> None: ...

class LedgerLac(_message.Message):
    __slots__ = ("ledger_id", "lac", "key", "identity")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    lac: int
    key: bytes
    identity: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., lac: _Optional[int] = ..., key: _Optional[bytes] = ..., identity: _Optional[bytes] = ...) -> None: ...

class Force(_message.Message):
    __slots__ = ("ledger_id", "key")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    key: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class RepairAdd(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Held(_message.Message):
    __slots__ = ("ledger_id", "first", "last")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    first: int
    last: int
    def __init__(self, ledger_id: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class Damaged(_message.Message):
    __slots__ = ("after_ledger_id", "after_first_entry_id", "limit")
    AFTER_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after_ledger_id: int
    after_first_entry_id: int
    limit: int
    def __init__(self, after_ledger_id: _Optional[int] = ..., after_first_entry_id: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class HeldLedgers(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: int
    limit: int
    def __init__(self, after: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class EndLimbo(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Authorize(_message.Message):
    __slots__ = ("permission", "command", "arguments")
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    permission: str
    command: str
    arguments: str
    def __init__(self, permission: _Optional[str] = ..., command: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("ledger_id", "entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("welcome", "request_id", "failure", "batches_answer", "entry_answer", "lac_answer", "fence_answer", "done_answer", "held_answer", "damaged_answer", "held_ledgers_answer", "status_answer", "trace_answer", "batches")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_ANSWER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ANSWER_FIELD_NUMBER: _ClassVar[int]
    LAC_ANSWER_FIELD_NUMBER: _ClassVar[int]
    FENCE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    DONE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    HELD_ANSWER_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_ANSWER_FIELD_NUMBER: _ClassVar[int]
    HELD_LEDGERS_ANSWER_FIELD_NUMBER: _ClassVar[int]
    STATUS_ANSWER_FIELD_NUMBER: _ClassVar[int]
    TRACE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    request_id: int
    failure: Failure
    batches_answer: BatchesAnswer
    entry_answer: EntryAnswer
    lac_answer: LacAnswer
    fence_answer: FenceAnswer
    done_answer: DoneAnswer
    held_answer: HeldAnswer
    damaged_answer: DamagedAnswer
    held_ledgers_answer: HeldLedgersAnswer
    status_answer: StatusAnswer
    trace_answer: TraceAnswer
    batches: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., request_id: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., batches_answer: _Optional[_Union[BatchesAnswer, _Mapping]] = ..., entry_answer: _Optional[_Union[EntryAnswer, _Mapping]] = ..., lac_answer: _Optional[_Union[LacAnswer, _Mapping]] = ..., fence_answer: _Optional[_Union[FenceAnswer, _Mapping]] = ..., done_answer: _Optional[_Union[DoneAnswer, _Mapping]] = ..., held_answer: _Optional[_Union[HeldAnswer, _Mapping]] = ..., damaged_answer: _Optional[_Union[DamagedAnswer, _Mapping]] = ..., held_ledgers_answer: _Optional[_Union[HeldLedgersAnswer, _Mapping]] = ..., status_answer: _Optional[_Union[StatusAnswer, _Mapping]] = ..., trace_answer: _Optional[_Union[TraceAnswer, _Mapping]] = ..., batches: _Optional[_Iterable[bytes]] = ...) -> None: ...

class BatchesAnswer(_message.Message):
    __slots__ = ("lac",)
    LAC_FIELD_NUMBER: _ClassVar[int]
    lac: int
    def __init__(self, lac: _Optional[int] = ...) -> None: ...

class EntryAnswer(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "payload", "payload_crc", "written_at_us", "lac")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_CRC_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_AT_US_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    payload: bytes
    payload_crc: int
    written_at_us: int
    lac: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., payload: _Optional[bytes] = ..., payload_crc: _Optional[int] = ..., written_at_us: _Optional[int] = ..., lac: _Optional[int] = ...) -> None: ...

class LacAnswer(_message.Message):
    __slots__ = ("lac", "fenced")
    LAC_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    lac: int
    fenced: bool
    def __init__(self, lac: _Optional[int] = ..., fenced: _Optional[bool] = ...) -> None: ...

class FenceAnswer(_message.Message):
    __slots__ = ("lac", "last_held")
    LAC_FIELD_NUMBER: _ClassVar[int]
    LAST_HELD_FIELD_NUMBER: _ClassVar[int]
    lac: int
    last_held: int
    def __init__(self, lac: _Optional[int] = ..., last_held: _Optional[int] = ...) -> None: ...

class DoneAnswer(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedLac]
    def __init__(self, refused: _Optional[_Iterable[_Union[RefusedLac, _Mapping]]] = ...) -> None: ...

class RefusedLac(_message.Message):
    __slots__ = ("at", "code", "retry_after_ms")
    AT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    at: int
    code: int
    retry_after_ms: int
    def __init__(self, at: _Optional[int] = ..., code: _Optional[int] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class EntryRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class HeldAnswer(_message.Message):
    __slots__ = ("ranges", "looked_up_to", "limbo", "writer")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    LOOKED_UP_TO_FIELD_NUMBER: _ClassVar[int]
    LIMBO_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[EntryRange]
    looked_up_to: int
    limbo: bool
    writer: bool
    def __init__(self, ranges: _Optional[_Iterable[_Union[EntryRange, _Mapping]]] = ..., looked_up_to: _Optional[int] = ..., limbo: _Optional[bool] = ..., writer: _Optional[bool] = ...) -> None: ...

class DamagedBatch(_message.Message):
    __slots__ = ("ledger_id", "first_entry_id", "last_entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., first_entry_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ...) -> None: ...

class DamagedAnswer(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[DamagedBatch]
    def __init__(self, batches: _Optional[_Iterable[_Union[DamagedBatch, _Mapping]]] = ...) -> None: ...

class HeldLedger(_message.Message):
    __slots__ = ("ledger_id", "fenced", "limbo", "identity")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    LIMBO_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    fenced: bool
    limbo: bool
    identity: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., fenced: _Optional[bool] = ..., limbo: _Optional[bool] = ..., identity: _Optional[bytes] = ...) -> None: ...

class HeldLedgersAnswer(_message.Message):
    __slots__ = ("ledgers", "complete")
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    ledgers: _containers.RepeatedCompositeFieldContainer[HeldLedger]
    complete: bool
    def __init__(self, ledgers: _Optional[_Iterable[_Union[HeldLedger, _Mapping]]] = ..., complete: _Optional[bool] = ...) -> None: ...

class DirectorySpace(_message.Message):
    __slots__ = ("path", "role", "disk", "total_bytes", "free_bytes", "state")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    path: str
    role: str
    disk: int
    total_bytes: int
    free_bytes: int
    state: str
    def __init__(self, path: _Optional[str] = ..., role: _Optional[str] = ..., disk: _Optional[int] = ..., total_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., state: _Optional[str] = ...) -> None: ...

class StatusAnswer(_message.Message):
    __slots__ = ("read_only", "disk_used_fraction", "free_bytes", "entry_log_bytes", "entry_logs", "journal_used_fraction", "ledgers_in_memory", "damaged_batches", "limbo_events", "limbo_below", "scrub_rounds", "uptime_seconds", "directories")
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRY_LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRY_LOGS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_USED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_IN_MEMORY_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    LIMBO_EVENTS_FIELD_NUMBER: _ClassVar[int]
    LIMBO_BELOW_FIELD_NUMBER: _ClassVar[int]
    SCRUB_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    read_only: bool
    disk_used_fraction: float
    free_bytes: int
    entry_log_bytes: int
    entry_logs: int
    journal_used_fraction: float
    ledgers_in_memory: int
    damaged_batches: int
    limbo_events: int
    limbo_below: int
    scrub_rounds: int
    uptime_seconds: float
    directories: _containers.RepeatedCompositeFieldContainer[DirectorySpace]
    def __init__(self, read_only: _Optional[bool] = ..., disk_used_fraction: _Optional[float] = ..., free_bytes: _Optional[int] = ..., entry_log_bytes: _Optional[int] = ..., entry_logs: _Optional[int] = ..., journal_used_fraction: _Optional[float] = ..., ledgers_in_memory: _Optional[int] = ..., damaged_batches: _Optional[int] = ..., limbo_events: _Optional[int] = ..., limbo_below: _Optional[int] = ..., scrub_rounds: _Optional[int] = ..., uptime_seconds: _Optional[float] = ..., directories: _Optional[_Iterable[_Union[DirectorySpace, _Mapping]]] = ...) -> None: ...

class CopyPlace(_message.Message):
    __slots__ = ("where", "detail", "size")
    WHERE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    where: str
    detail: str
    size: int
    def __init__(self, where: _Optional[str] = ..., detail: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class TraceAnswer(_message.Message):
    __slots__ = ("verdict", "why", "first_entry_id", "last_entry_id", "batch_crc", "batch_bytes", "lac", "fenced", "limbo", "places")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_CRC_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    LIMBO_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    verdict: str
    why: str
    first_entry_id: int
    last_entry_id: int
    batch_crc: int
    batch_bytes: int
    lac: int
    fenced: bool
    limbo: bool
    places: _containers.RepeatedCompositeFieldContainer[CopyPlace]
    def __init__(self, verdict: _Optional[str] = ..., why: _Optional[str] = ..., first_entry_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ..., batch_crc: _Optional[int] = ..., batch_bytes: _Optional[int] = ..., lac: _Optional[int] = ..., fenced: _Optional[bool] = ..., limbo: _Optional[bool] = ..., places: _Optional[_Iterable[_Union[CopyPlace, _Mapping]]] = ...) -> None: ...
