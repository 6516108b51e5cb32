import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from tallybook.proto import ledger_pb2 as _ledger_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPRESSION_UNSPECIFIED: _ClassVar[Compression]
    COMPRESSION_NONE: _ClassVar[Compression]
    COMPRESSION_ZSTD: _ClassVar[Compression]
    COMPRESSION_LZ4: _ClassVar[Compression]

class Edge(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EDGE_UNSPECIFIED: _ClassVar[Edge]
    EDGE_EARLIEST: _ClassVar[Edge]
    EDGE_LATEST: _ClassVar[Edge]

class GapReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GAP_REASON_UNSPECIFIED: _ClassVar[GapReason]
    GAP_REASON_TRUNCATED: _ClassVar[GapReason]
    GAP_REASON_LOST: _ClassVar[GapReason]
COMPRESSION_UNSPECIFIED: Compression
COMPRESSION_NONE: Compression
COMPRESSION_ZSTD: Compression
COMPRESSION_LZ4: Compression
EDGE_UNSPECIFIED: Edge
EDGE_EARLIEST: Edge
EDGE_LATEST: Edge
GAP_REASON_UNSPECIFIED: GapReason
GAP_REASON_TRUNCATED: GapReason
GAP_REASON_LOST: GapReason

class StreamPolicy(_message.Message):
    __slots__ = ("ensemble", "write_quorum", "ack_quorum", "roll_bytes", "roll_after_s", "retention_s", "offload_after_s", "compression", "dedup_records", "retention_bytes", "max_bytes")
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ROLL_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROLL_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    RETENTION_S_FIELD_NUMBER: _ClassVar[int]
    OFFLOAD_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    DEDUP_RECORDS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    ensemble: int
    write_quorum: int
    ack_quorum: int
    roll_bytes: int
    roll_after_s: int
    retention_s: int
    offload_after_s: int
    compression: Compression
    dedup_records: int
    retention_bytes: int
    max_bytes: int
    def __init__(self, ensemble: _Optional[int] = ..., write_quorum: _Optional[int] = ..., ack_quorum: _Optional[int] = ..., roll_bytes: _Optional[int] = ..., roll_after_s: _Optional[int] = ..., retention_s: _Optional[int] = ..., offload_after_s: _Optional[int] = ..., compression: _Optional[_Union[Compression, str]] = ..., dedup_records: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ("name", "namespace", "stream_id", "created_at", "policy", "segments", "ended", "owner")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    stream_id: str
    created_at: _timestamp_pb2.Timestamp
    policy: StreamPolicy
    segments: int
    ended: bool
    owner: str
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., stream_id: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., policy: _Optional[_Union[StreamPolicy, _Mapping]] = ..., segments: _Optional[int] = ..., ended: _Optional[bool] = ..., owner: _Optional[str] = ...) -> None: ...

class CreateStreamRequest(_message.Message):
    __slots__ = ("name", "namespace", "policy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    policy: StreamPolicy
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., policy: _Optional[_Union[StreamPolicy, _Mapping]] = ...) -> None: ...

class DeleteStreamRequest(_message.Message):
    __slots__ = ("name", "namespace")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class DeleteStreamReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RenameStreamRequest(_message.Message):
    __slots__ = ("name", "namespace", "new_name")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NEW_NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    new_name: str
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., new_name: _Optional[str] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    __slots__ = ("namespace", "prefix", "page_size", "page_token")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    prefix: str
    page_size: int
    page_token: str
    def __init__(self, namespace: _Optional[str] = ..., prefix: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListStreamsReply(_message.Message):
    __slots__ = ("names", "next_page_token")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DescribeStreamRequest(_message.Message):
    __slots__ = ("name", "namespace")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class StreamDescription(_message.Message):
    __slots__ = ("stream", "first_sequence", "next_sequence", "record_count", "first_position", "last_position")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LAST_POSITION_FIELD_NUMBER: _ClassVar[int]
    stream: Stream
    first_sequence: int
    next_sequence: int
    record_count: int
    first_position: str
    last_position: str
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ..., first_sequence: _Optional[int] = ..., next_sequence: _Optional[int] = ..., record_count: _Optional[int] = ..., first_position: _Optional[str] = ..., last_position: _Optional[str] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("name", "namespace", "policy", "clear")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    policy: StreamPolicy
    clear: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., policy: _Optional[_Union[StreamPolicy, _Mapping]] = ..., clear: _Optional[_Iterable[str]] = ...) -> None: ...

class TruncateStreamRequest(_message.Message):
    __slots__ = ("name", "namespace", "before")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    before: StreamStart
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., before: _Optional[_Union[StreamStart, _Mapping]] = ...) -> None: ...

class EndStreamRequest(_message.Message):
    __slots__ = ("name", "namespace", "take_over", "wait_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    take_over: bool
    wait_ms: int
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., take_over: _Optional[bool] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class StreamStart(_message.Message):
    __slots__ = ("edge", "position", "after", "timestamp_ms", "sequence", "txid")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TXID_FIELD_NUMBER: _ClassVar[int]
    edge: Edge
    position: str
    after: str
    timestamp_ms: int
    sequence: int
    txid: int
    def __init__(self, edge: _Optional[_Union[Edge, str]] = ..., position: _Optional[str] = ..., after: _Optional[str] = ..., timestamp_ms: _Optional[int] = ..., sequence: _Optional[int] = ..., txid: _Optional[int] = ...) -> None: ...

class StreamAppendRequest(_message.Message):
    __slots__ = ("open", "commit", "close", "records", "set", "if_position")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    IF_POSITION_FIELD_NUMBER: _ClassVar[int]
    open: StreamAppendOpen
    commit: StreamCommit
    close: StreamAppendClose
    records: _containers.RepeatedCompositeFieldContainer[NewRecord]
    set: bool
    if_position: str
    def __init__(self, open: _Optional[_Union[StreamAppendOpen, _Mapping]] = ..., commit: _Optional[_Union[StreamCommit, _Mapping]] = ..., close: _Optional[_Union[StreamAppendClose, _Mapping]] = ..., records: _Optional[_Iterable[_Union[NewRecord, _Mapping]]] = ..., set: _Optional[bool] = ..., if_position: _Optional[str] = ...) -> None: ...

class StreamAppendOpen(_message.Message):
    __slots__ = ("name", "namespace", "credit_bytes", "take_over", "wait_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    credit_bytes: int
    take_over: bool
    wait_ms: int
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., credit_bytes: _Optional[int] = ..., take_over: _Optional[bool] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class NewRecord(_message.Message):
    __slots__ = ("payload", "key", "timestamp_ms", "txid", "dedup_id")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    TXID_FIELD_NUMBER: _ClassVar[int]
    DEDUP_ID_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    key: bytes
    timestamp_ms: int
    txid: int
    dedup_id: bytes
    def __init__(self, payload: _Optional[bytes] = ..., key: _Optional[bytes] = ..., timestamp_ms: _Optional[int] = ..., txid: _Optional[int] = ..., dedup_id: _Optional[bytes] = ...) -> None: ...

class StreamCommit(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamAppendClose(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamAppendReply(_message.Message):
    __slots__ = ("opened", "ack", "committed", "closed")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    opened: StreamAppendOpened
    ack: StreamAck
    committed: StreamCommitted
    closed: StreamAppendClosed
    def __init__(self, opened: _Optional[_Union[StreamAppendOpened, _Mapping]] = ..., ack: _Optional[_Union[StreamAck, _Mapping]] = ..., committed: _Optional[_Union[StreamCommitted, _Mapping]] = ..., closed: _Optional[_Union[StreamAppendClosed, _Mapping]] = ...) -> None: ...

class StreamAppendOpened(_message.Message):
    __slots__ = ("stream_id", "window", "last_position")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    LAST_POSITION_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    window: _ledger_pb2.Window
    last_position: str
    def __init__(self, stream_id: _Optional[str] = ..., window: _Optional[_Union[_ledger_pb2.Window, _Mapping]] = ..., last_position: _Optional[str] = ...) -> None: ...

class StreamAck(_message.Message):
    __slots__ = ("count", "credit_bytes", "positions")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    count: int
    credit_bytes: int
    positions: _containers.RepeatedCompositeFieldContainer[PositionRun]
    def __init__(self, count: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., positions: _Optional[_Iterable[_Union[PositionRun, _Mapping]]] = ...) -> None: ...

class PositionRun(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: str
    count: int
    def __init__(self, first: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class StreamCommitted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamAppendClosed(_message.Message):
    __slots__ = ("last_position",)
    LAST_POSITION_FIELD_NUMBER: _ClassVar[int]
    last_position: str
    def __init__(self, last_position: _Optional[str] = ...) -> None: ...

class ReadStreamRequest(_message.Message):
    __slots__ = ("name", "namespace", "start", "follow", "gaps_as_messages", "max_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    GAPS_AS_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    start: StreamStart
    follow: bool
    gaps_as_messages: bool
    max_bytes: int
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., start: _Optional[_Union[StreamStart, _Mapping]] = ..., follow: _Optional[bool] = ..., gaps_as_messages: _Optional[bool] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ReadStreamReply(_message.Message):
    __slots__ = ("records", "gap")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    records: StreamRecords
    gap: StreamGap
    def __init__(self, records: _Optional[_Union[StreamRecords, _Mapping]] = ..., gap: _Optional[_Union[StreamGap, _Mapping]] = ...) -> None: ...

class StreamRecords(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[StreamRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[StreamRecord, _Mapping]]] = ...) -> None: ...

class StreamRecord(_message.Message):
    __slots__ = ("position", "sequence", "timestamp_ms", "payload", "key", "txid", "dedup_id")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TXID_FIELD_NUMBER: _ClassVar[int]
    DEDUP_ID_FIELD_NUMBER: _ClassVar[int]
    position: str
    sequence: int
    timestamp_ms: int
    payload: bytes
    key: bytes
    txid: int
    dedup_id: bytes
    def __init__(self, position: _Optional[str] = ..., sequence: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., payload: _Optional[bytes] = ..., key: _Optional[bytes] = ..., txid: _Optional[int] = ..., dedup_id: _Optional[bytes] = ...) -> None: ...

class StreamGap(_message.Message):
    __slots__ = ("reason", "first_sequence", "next_sequence", "position", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: GapReason
    first_sequence: int
    next_sequence: int
    position: str
    message: str
    def __init__(self, reason: _Optional[_Union[GapReason, str]] = ..., first_sequence: _Optional[int] = ..., next_sequence: _Optional[int] = ..., position: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("open", "advance")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_FIELD_NUMBER: _ClassVar[int]
    open: SubscribeOpen
    advance: Advance
    def __init__(self, open: _Optional[_Union[SubscribeOpen, _Mapping]] = ..., advance: _Optional[_Union[Advance, _Mapping]] = ...) -> None: ...

class SubscribeOpen(_message.Message):
    __slots__ = ("name", "namespace", "subscription", "start", "no_follow", "gaps_as_messages", "max_bytes", "take_over", "wait_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NO_FOLLOW_FIELD_NUMBER: _ClassVar[int]
    GAPS_AS_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    subscription: str
    start: StreamStart
    no_follow: bool
    gaps_as_messages: bool
    max_bytes: int
    take_over: bool
    wait_ms: int
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., subscription: _Optional[str] = ..., start: _Optional[_Union[StreamStart, _Mapping]] = ..., no_follow: _Optional[bool] = ..., gaps_as_messages: _Optional[bool] = ..., max_bytes: _Optional[int] = ..., take_over: _Optional[bool] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class Advance(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: str
    def __init__(self, position: _Optional[str] = ...) -> None: ...

class SubscribeReply(_message.Message):
    __slots__ = ("opened", "records", "gap", "advanced", "at_end")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    ADVANCED_FIELD_NUMBER: _ClassVar[int]
    AT_END_FIELD_NUMBER: _ClassVar[int]
    opened: SubscribeOpened
    records: StreamRecords
    gap: StreamGap
    advanced: Advanced
    at_end: AtEnd
    def __init__(self, opened: _Optional[_Union[SubscribeOpened, _Mapping]] = ..., records: _Optional[_Union[StreamRecords, _Mapping]] = ..., gap: _Optional[_Union[StreamGap, _Mapping]] = ..., advanced: _Optional[_Union[Advanced, _Mapping]] = ..., at_end: _Optional[_Union[AtEnd, _Mapping]] = ...) -> None: ...

class SubscribeOpened(_message.Message):
    __slots__ = ("cursor",)
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    cursor: Cursor
    def __init__(self, cursor: _Optional[_Union[Cursor, _Mapping]] = ...) -> None: ...

class Advanced(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: str
    def __init__(self, position: _Optional[str] = ...) -> None: ...

class AtEnd(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cursor(_message.Message):
    __slots__ = ("position", "after")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    position: str
    after: bool
    def __init__(self, position: _Optional[str] = ..., after: _Optional[bool] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("subscription", "cursor", "created_at", "reader")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    cursor: Cursor
    created_at: _timestamp_pb2.Timestamp
    reader: str
    def __init__(self, subscription: _Optional[str] = ..., cursor: _Optional[_Union[Cursor, _Mapping]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reader: _Optional[str] = ...) -> None: ...

class ListSubscriptionsRequest(_message.Message):
    __slots__ = ("name", "namespace", "page_size", "page_token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    page_size: int
    page_token: str
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSubscriptionsReply(_message.Message):
    __slots__ = ("subscriptions", "next_page_token")
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    next_page_token: str
    def __init__(self, subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ResetSubscriptionRequest(_message.Message):
    __slots__ = ("name", "namespace", "subscription", "start")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    subscription: str
    start: StreamStart
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., subscription: _Optional[str] = ..., start: _Optional[_Union[StreamStart, _Mapping]] = ...) -> None: ...

class DeleteSubscriptionRequest(_message.Message):
    __slots__ = ("name", "namespace", "subscription")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    subscription: str
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...

class DeleteSubscriptionReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
