from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PageTable(_message.Message):
    __slots__ = ("offset", "rows", "header_bytes", "body_bytes", "raw_bytes", "crc32c")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    HEADER_BYTES_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    offset: int
    rows: _containers.RepeatedScalarFieldContainer[int]
    header_bytes: _containers.RepeatedScalarFieldContainer[int]
    body_bytes: _containers.RepeatedScalarFieldContainer[int]
    raw_bytes: _containers.RepeatedScalarFieldContainer[int]
    crc32c: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offset: _Optional[int] = ..., rows: _Optional[_Iterable[int]] = ..., header_bytes: _Optional[_Iterable[int]] = ..., body_bytes: _Optional[_Iterable[int]] = ..., raw_bytes: _Optional[_Iterable[int]] = ..., crc32c: _Optional[_Iterable[int]] = ...) -> None: ...

class BatchTable(_message.Message):
    __slots__ = ("first_entry_id", "ledger_length_before", "entries", "payload_bytes", "written_at_us", "lac_lag", "length_gap", "crc32c", "digests")
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_LENGTH_BEFORE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_AT_US_FIELD_NUMBER: _ClassVar[int]
    LAC_LAG_FIELD_NUMBER: _ClassVar[int]
    LENGTH_GAP_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    first_entry_id: int
    ledger_length_before: int
    entries: _containers.RepeatedScalarFieldContainer[int]
    payload_bytes: _containers.RepeatedScalarFieldContainer[int]
    written_at_us: _containers.RepeatedScalarFieldContainer[int]
    lac_lag: _containers.RepeatedScalarFieldContainer[int]
    length_gap: _containers.RepeatedScalarFieldContainer[int]
    crc32c: _containers.RepeatedScalarFieldContainer[int]
    digests: bytes
    def __init__(self, first_entry_id: _Optional[int] = ..., ledger_length_before: _Optional[int] = ..., entries: _Optional[_Iterable[int]] = ..., payload_bytes: _Optional[_Iterable[int]] = ..., written_at_us: _Optional[_Iterable[int]] = ..., lac_lag: _Optional[_Iterable[int]] = ..., length_gap: _Optional[_Iterable[int]] = ..., crc32c: _Optional[_Iterable[int]] = ..., digests: _Optional[bytes] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("offset", "bytes", "raw_bytes", "crc32c")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    offset: int
    bytes: int
    raw_bytes: int
    crc32c: int
    def __init__(self, offset: _Optional[int] = ..., bytes: _Optional[int] = ..., raw_bytes: _Optional[int] = ..., crc32c: _Optional[int] = ...) -> None: ...

class RowGroup(_message.Message):
    __slots__ = ("rows", "pages")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    rows: int
    pages: Part
    def __init__(self, rows: _Optional[int] = ..., pages: _Optional[_Union[Part, _Mapping]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("row_group", "first_row", "rows", "first_entry_id", "batches")
    ROW_GROUP_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    row_group: int
    first_row: int
    rows: int
    first_entry_id: int
    batches: Part
    def __init__(self, row_group: _Optional[int] = ..., first_row: _Optional[int] = ..., rows: _Optional[int] = ..., first_entry_id: _Optional[int] = ..., batches: _Optional[_Union[Part, _Mapping]] = ...) -> None: ...

class ArchivedLedger(_message.Message):
    __slots__ = ("ledger_id", "metadata", "entries", "payload_bytes", "rolling_crc32c", "runs")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROLLING_CRC32C_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    metadata: bytes
    entries: int
    payload_bytes: int
    rolling_crc32c: int
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, ledger_id: _Optional[int] = ..., metadata: _Optional[bytes] = ..., entries: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., rolling_crc32c: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class Directory(_message.Message):
    __slots__ = ("format", "object_id", "created_at_ms", "row_groups", "ledgers")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ROW_GROUPS_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    format: int
    object_id: str
    created_at_ms: int
    row_groups: _containers.RepeatedCompositeFieldContainer[RowGroup]
    ledgers: _containers.RepeatedCompositeFieldContainer[ArchivedLedger]
    def __init__(self, format: _Optional[int] = ..., object_id: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., row_groups: _Optional[_Iterable[_Union[RowGroup, _Mapping]]] = ..., ledgers: _Optional[_Iterable[_Union[ArchivedLedger, _Mapping]]] = ...) -> None: ...
