"""Kinds of values that settings have: sizes, durations, addresses, directories; each checks what it is given."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field

from .errors import InvalidConfig
from .limits import BLOCK_BYTES
from .trace_option import parse_traces


def _no_flag(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")  # noqa: TRY004 (pydantic reports ValueError)
    return value


number = BeforeValidator(_no_flag)
"""What pydantic would take for a number, but true and false."""
Size = Annotated[ByteSize, Field(ge=0, le=2**60), number]
Room = Annotated[ByteSize, Field(ge=BLOCK_BYTES, le=2**60), number]
"""A size below which nothing would ever get through."""
Milliseconds = Annotated[int, Field(ge=0, le=86_400_000), number]
Wait = Annotated[int, Field(ge=1, le=86_400_000), number]
"""Milliseconds without which a client would give up at once, or ask without a pause."""
Seconds = Annotated[int, Field(ge=0, le=10 * 365 * 86_400), number]
Count = Annotated[int, Field(ge=1, le=1_000_000), number]
Share = Annotated[int, Field(ge=0, le=100), number]
"""A part of something in percent, which may be nothing."""
Percent = Annotated[int, Field(ge=1, le=100), number]

PlacementPolicy: TypeAlias = Literal["random", "rack_aware"]

_ADDRESS: Final = re.compile(r"(?:[^\s\x00-\x1f\x7f:/\[\]]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_BOOKIE_ID: Final = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
_PATH: Final = re.compile(r"/[!-+\--~]{0,199}")

NAMING_MS: Final = 10_000
"""What a repair may take from its last copy until the metadata name who has it: one operation of the metadata."""

MAX_DIRECTORIES: Final = 8
"""Directories of one kind that a bookie may have: their paths stand in one small file."""


def address(value: str) -> str:
    """A host and a port."""
    match = _ADDRESS.fullmatch(value)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError("HOST:PORT is wanted, the port a number up to 65535")
    return value


def address_or_none(value: str) -> str:
    """A host and a port, or nothing."""
    return value and address(value)


def bookie_id_or_none(value: str) -> str:
    """The id of a bookie, or nothing."""
    if value and _BOOKIE_ID.fullmatch(value) is None:
        raise ValueError("1 to 128 letters, digits or . _ : - are wanted")
    return value


def _split(value: object) -> object:
    """A variable of the environment has no lists: commas stand between the paths."""
    if isinstance(value, str):
        return tuple(path.strip() for path in value.split(",")) if value.strip() else ()
    return value


def _paths(value: tuple[str, ...]) -> tuple[str, ...]:
    for path in value:
        if _PATH.fullmatch(path) is None:
            raise ValueError("absolute paths are wanted, of up to 200 printable ASCII characters but space and comma")
    paths = tuple(path.rstrip("/") or "/" for path in value)
    if len(paths) > MAX_DIRECTORIES or len(set(paths)) < len(paths):
        raise ValueError(f"at most {MAX_DIRECTORIES} directories are wanted, none of them twice")
    return paths


Directories = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_paths)]
SecurityDirectory = Annotated[
    str,
    Field(
        max_length=4_096,
        description="Directory of certificates, keys and rules of access, for TLS everywhere: docs/security.md; empty: "
        "no security.",
    ),
]
Insecure = Annotated[
    bool,
    Field(
        description="Serve others than this machine without security: everybody who reaches the process may read and "
        "delete everything."
    ),
]
ArchiveKeysFile = Annotated[
    str,
    Field(
        max_length=4_096,
        description="File with the keys of a sealed archive: docs/security.md; empty: what is archived is not sealed, "
        "and what is sealed cannot be read.",
    ),
]


def _traces(value: str) -> str:
    try:
        parse_traces(value)
    except InvalidConfig as error:
        raise ValueError(error.message) from None
    return value


Traces = Annotated[
    str,
    AfterValidator(_traces),
    Field(
        description="Where spans of adds and reads go, by OTLP over HTTP, and which share of them is traced: "
        "`http://HOST:4318,share=0.01`; a bookie follows whoever asks it. Needs `tallybook[traces]`: docs/tracing.md; "
        "empty: nothing is traced.",
    ),
]


Hosts = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], BeforeValidator(_split)]
Addresses = Annotated[
    tuple[Annotated[str, Field(max_length=260), AfterValidator(address)], ...], BeforeValidator(_split)
]
