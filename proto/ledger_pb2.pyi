import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Digest(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIGEST_UNSPECIFIED: _ClassVar[Digest]
    DIGEST_CRC32C: _ClassVar[Digest]
    DIGEST_HMAC_SHA256: _ClassVar[Digest]

class LedgerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEDGER_STATE_UNSPECIFIED: _ClassVar[LedgerState]
    LEDGER_STATE_OPEN: _ClassVar[LedgerState]
    LEDGER_STATE_IN_RECOVERY: _ClassVar[LedgerState]
    LEDGER_STATE_CLOSED: _ClassVar[LedgerState]
DIGEST_UNSPECIFIED: Digest
DIGEST_CRC32C: Digest
DIGEST_HMAC_SHA256: Digest
LEDGER_STATE_UNSPECIFIED: LedgerState
LEDGER_STATE_OPEN: LedgerState
LEDGER_STATE_IN_RECOVERY: LedgerState
LEDGER_STATE_CLOSED: LedgerState

class CreateRequest(_message.Message):
    __slots__ = ("ensemble", "write_quorum", "ack_quorum", "password", "digest", "custom")
    class CustomEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_FIELD_NUMBER: _ClassVar[int]
    ensemble: int
    write_quorum: int
    ack_quorum: int
    password: bytes
    digest: Digest
    custom: _containers.ScalarMap[str, bytes]
    def __init__(self, ensemble: _Optional[int] = ..., write_quorum: _Optional[int] = ..., ack_quorum: _Optional[int] = ..., password: _Optional[bytes] = ..., digest: _Optional[_Union[Digest, str]] = ..., custom: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class Ledger(_message.Message):
    __slots__ = ("ledger_id", "state", "last_entry_id", "length_bytes", "ensemble", "write_quorum", "ack_quorum", "digest", "has_password", "has_writer", "archived", "created_at", "custom")
    class CustomEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HAS_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    HAS_WRITER_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    state: LedgerState
    last_entry_id: int
    length_bytes: int
    ensemble: int
    write_quorum: int
    ack_quorum: int
    digest: Digest
    has_password: bool
    has_writer: bool
    archived: bool
    created_at: _timestamp_pb2.Timestamp
    custom: _containers.ScalarMap[str, bytes]
    def __init__(self, ledger_id: _Optional[int] = ..., state: _Optional[_Union[LedgerState, str]] = ..., last_entry_id: _Optional[int] = ..., length_bytes: _Optional[int] = ..., ensemble: _Optional[int] = ..., write_quorum: _Optional[int] = ..., ack_quorum: _Optional[int] = ..., digest: _Optional[_Union[Digest, str]] = ..., has_password: _Optional[bool] = ..., has_writer: _Optional[bool] = ..., archived: _Optional[bool] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., custom: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("ledger_id", "password")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    password: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., password: _Optional[bytes] = ...) -> None: ...

class RecoverRequest(_message.Message):
    __slots__ = ("ledger_id", "password")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    password: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., password: _Optional[bytes] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("ledger_id", "password", "force")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    password: bytes
    force: bool
    def __init__(self, ledger_id: _Optional[int] = ..., password: _Optional[bytes] = ..., force: _Optional[bool] = ...) -> None: ...

class DeleteReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("ledger_id", "password")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    password: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., password: _Optional[bytes] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("ledger_ids", "next_page_token")
    LEDGER_IDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ledger_ids: _containers.RepeatedScalarFieldContainer[int]
    next_page_token: str
    def __init__(self, ledger_ids: _Optional[_Iterable[int]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("open", "close", "payloads")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    open: AppendOpen
    close: AppendClose
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, open: _Optional[_Union[AppendOpen, _Mapping]] = ..., close: _Optional[_Union[AppendClose, _Mapping]] = ..., payloads: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AppendOpen(_message.Message):
    __slots__ = ("ledger_id", "create", "password", "credit_bytes")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    create: CreateRequest
    password: bytes
    credit_bytes: int
    def __init__(self, ledger_id: _Optional[int] = ..., create: _Optional[_Union[CreateRequest, _Mapping]] = ..., password: _Optional[bytes] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class AppendClose(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("opened", "ack", "closed")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    opened: AppendOpened
    ack: AppendAck
    closed: Ledger
    def __init__(self, opened: _Optional[_Union[AppendOpened, _Mapping]] = ..., ack: _Optional[_Union[AppendAck, _Mapping]] = ..., closed: _Optional[_Union[Ledger, _Mapping]] = ...) -> None: ...

class AppendOpened(_message.Message):
    __slots__ = ("ledger_id", "window")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    window: Window
    def __init__(self, ledger_id: _Optional[int] = ..., window: _Optional[_Union[Window, _Mapping]] = ...) -> None: ...

class AppendAck(_message.Message):
    __slots__ = ("first_entry_id", "count", "credit_bytes")
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    first_entry_id: int
    count: int
    credit_bytes: int
    def __init__(self, first_entry_id: _Optional[int] = ..., count: _Optional[int] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("ledger_id", "password", "first", "last", "max_bytes")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    password: bytes
    first: int
    last: int
    max_bytes: int
    def __init__(self, ledger_id: _Optional[int] = ..., password: _Optional[bytes] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class TailRequest(_message.Message):
    __slots__ = ("ledger_id", "password", "first", "max_bytes")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    password: bytes
    first: int
    max_bytes: int
    def __init__(self, ledger_id: _Optional[int] = ..., password: _Optional[bytes] = ..., first: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class Entries(_message.Message):
    __slots__ = ("first_entry_id", "payloads")
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    first_entry_id: int
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, first_entry_id: _Optional[int] = ..., payloads: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("credit_bytes", "payload_overhead_bytes", "max_payload_bytes")
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_OVERHEAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    credit_bytes: int
    payload_overhead_bytes: int
    max_payload_bytes: int
    def __init__(self, credit_bytes: _Optional[int] = ..., payload_overhead_bytes: _Optional[int] = ..., max_payload_bytes: _Optional[int] = ...) -> None: ...
