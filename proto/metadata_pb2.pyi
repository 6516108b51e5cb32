from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LedgerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEDGER_STATE_UNSPECIFIED: _ClassVar[LedgerState]
    LEDGER_STATE_OPEN: _ClassVar[LedgerState]
    LEDGER_STATE_IN_RECOVERY: _ClassVar[LedgerState]
    LEDGER_STATE_CLOSED: _ClassVar[LedgerState]

class DigestType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIGEST_TYPE_UNSPECIFIED: _ClassVar[DigestType]
    DIGEST_TYPE_CRC32C: _ClassVar[DigestType]
    DIGEST_TYPE_HMAC_SHA256: _ClassVar[DigestType]

class BookieMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BOOKIE_MODE_UNSPECIFIED: _ClassVar[BookieMode]
    BOOKIE_MODE_WRITABLE: _ClassVar[BookieMode]
    BOOKIE_MODE_READ_ONLY: _ClassVar[BookieMode]
LEDGER_STATE_UNSPECIFIED: LedgerState
LEDGER_STATE_OPEN: LedgerState
LEDGER_STATE_IN_RECOVERY: LedgerState
LEDGER_STATE_CLOSED: LedgerState
DIGEST_TYPE_UNSPECIFIED: DigestType
DIGEST_TYPE_CRC32C: DigestType
DIGEST_TYPE_HMAC_SHA256: DigestType
BOOKIE_MODE_UNSPECIFIED: BookieMode
BOOKIE_MODE_WRITABLE: BookieMode
BOOKIE_MODE_READ_ONLY: BookieMode

class Quorum(_message.Message):
    __slots__ = ("ensemble", "write_quorum", "ack_quorum", "stripe_entries")
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    STRIPE_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ensemble: int
    write_quorum: int
    ack_quorum: int
    stripe_entries: int
    def __init__(self, ensemble: _Optional[int] = ..., write_quorum: _Optional[int] = ..., ack_quorum: _Optional[int] = ..., stripe_entries: _Optional[int] = ...) -> None: ...

class Fragment(_message.Message):
    __slots__ = ("first_entry_id", "bookies")
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    BOOKIES_FIELD_NUMBER: _ClassVar[int]
    first_entry_id: int
    bookies: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, first_entry_id: _Optional[int] = ..., bookies: _Optional[_Iterable[str]] = ...) -> None: ...

class MissedRange(_message.Message):
    __slots__ = ("bookie_id", "first_entry_id", "last_entry_id")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    first_entry_id: int
    last_entry_id: int
    def __init__(self, bookie_id: _Optional[str] = ..., first_entry_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ...) -> None: ...

class ArchiveAttempt(_message.Message):
    __slots__ = ("object_id", "began_at_ms")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    BEGAN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    began_at_ms: int
    def __init__(self, object_id: _Optional[str] = ..., began_at_ms: _Optional[int] = ...) -> None: ...

class IndexPart(_message.Message):
    __slots__ = ("offset", "stored_bytes", "raw_bytes", "crc32c")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    offset: int
    stored_bytes: int
    raw_bytes: int
    crc32c: int
    def __init__(self, offset: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., raw_bytes: _Optional[int] = ..., crc32c: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("object_id", "key", "object_bytes", "object_sha256", "index", "entries", "payload_bytes", "rolling_crc32c", "archived_at_ms")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OBJECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OBJECT_SHA256_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROLLING_CRC32C_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    key: str
    object_bytes: int
    object_sha256: bytes
    index: IndexPart
    entries: int
    payload_bytes: int
    rolling_crc32c: int
    archived_at_ms: int
    def __init__(self, object_id: _Optional[str] = ..., key: _Optional[str] = ..., object_bytes: _Optional[int] = ..., object_sha256: _Optional[bytes] = ..., index: _Optional[_Union[IndexPart, _Mapping]] = ..., entries: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., rolling_crc32c: _Optional[int] = ..., archived_at_ms: _Optional[int] = ...) -> None: ...

class Ledger(_message.Message):
    __slots__ = ("ledger_id", "quorum", "fragments", "creator_token", "created_at_ms", "state", "last_entry_id", "length", "digest", "key_salt", "key_verifier", "writer_token", "missed", "custom", "archiving", "archived", "copies_released")
    class CustomEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    CREATOR_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    KEY_SALT_FIELD_NUMBER: _ClassVar[int]
    KEY_VERIFIER_FIELD_NUMBER: _ClassVar[int]
    WRITER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_FIELD_NUMBER: _ClassVar[int]
    ARCHIVING_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    COPIES_RELEASED_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    quorum: Quorum
    fragments: _containers.RepeatedCompositeFieldContainer[Fragment]
    creator_token: str
    created_at_ms: int
    state: LedgerState
    last_entry_id: int
    length: int
    digest: DigestType
    key_salt: bytes
    key_verifier: bytes
    writer_token: str
    missed: _containers.RepeatedCompositeFieldContainer[MissedRange]
    custom: _containers.ScalarMap[str, bytes]
    archiving: ArchiveAttempt
    archived: Receipt
    copies_released: bool
    def __init__(self, ledger_id: _Optional[int] = ..., quorum: _Optional[_Union[Quorum, _Mapping]] = ..., fragments: _Optional[_Iterable[_Union[Fragment, _Mapping]]] = ..., creator_token: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., state: _Optional[_Union[LedgerState, str]] = ..., last_entry_id: _Optional[int] = ..., length: _Optional[int] = ..., digest: _Optional[_Union[DigestType, str]] = ..., key_salt: _Optional[bytes] = ..., key_verifier: _Optional[bytes] = ..., writer_token: _Optional[str] = ..., missed: _Optional[_Iterable[_Union[MissedRange, _Mapping]]] = ..., custom: _Optional[_Mapping[str, bytes]] = ..., archiving: _Optional[_Union[ArchiveAttempt, _Mapping]] = ..., archived: _Optional[_Union[Receipt, _Mapping]] = ..., copies_released: _Optional[bool] = ...) -> None: ...

class Bookie(_message.Message):
    __slots__ = ("bookie_id", "address", "directory_uuid", "boot", "mode", "http_address", "rack", "session", "free_bytes", "version")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_UUID_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    address: str
    directory_uuid: str
    boot: int
    mode: BookieMode
    http_address: str
    rack: str
    session: str
    free_bytes: int
    version: str
    def __init__(self, bookie_id: _Optional[str] = ..., address: _Optional[str] = ..., directory_uuid: _Optional[str] = ..., boot: _Optional[int] = ..., mode: _Optional[_Union[BookieMode, str]] = ..., http_address: _Optional[str] = ..., rack: _Optional[str] = ..., session: _Optional[str] = ..., free_bytes: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...
