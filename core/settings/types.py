"""Types of setting values (sizes, durations, addresses, directories) with their validation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import ErrorDetails

from ..errors import InvalidConfig
from ..limits import BLOCK_BYTES
from ..trace_option import parse_traces

if TYPE_CHECKING:
    # For a program a size is a number of bytes. The unit names ("4 MiB") are for files, the environment and flags.
    ByteSize = int
else:
    from pydantic import ByteSize


def _refuse_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")  # noqa: TRY004 (pydantic reports ValueError)
    return value


no_boolean = BeforeValidator(_refuse_boolean)
"""Refuses true and false, which pydantic accepts as numbers."""
Size = Annotated[ByteSize, Field(ge=0, le=2**60), no_boolean]
BufferSize = Annotated[ByteSize, Field(ge=BLOCK_BYTES, le=2**60), no_boolean]
"""A size of at least one block: a smaller buffer would let nothing through."""
Milliseconds = Annotated[int, Field(ge=0, le=86_400_000), no_boolean]
PositiveMilliseconds = Annotated[int, Field(ge=1, le=86_400_000), no_boolean]
"""Timeouts and pauses: 0 would mean to give up immediately, or to poll without a pause."""
Seconds = Annotated[int, Field(ge=0, le=10 * 365 * 86_400), no_boolean]
Count = Annotated[int, Field(ge=1, le=1_000_000), no_boolean]
Percent = Annotated[int, Field(ge=0, le=100), no_boolean]
"""A percentage that may be 0."""
PositivePercent = Annotated[int, Field(ge=1, le=100), no_boolean]

PlacementPolicy: TypeAlias = Literal["random", "rack_aware"]

_ADDRESS: Final = re.compile(r"(?:[^\s\x00-\x1f\x7f:/\[\]]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
OFF: Final = "off"
"""Value of a setting that switches something off."""
_BOOKIE_ID: Final = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
_PATH: Final = re.compile(r"/[!-+\--~]{0,199}")

_NOT_A_SIZE: Final = ("byte_size", "byte_size_unit")
"""Error types of pydantic for a text that is not a size."""

REPAIR_COMMIT_MS: Final = 10_000
"""Time that a repair may take from its last copy until the metadata names the bookie: one metadata operation."""

MAX_DIRECTORIES: Final = 8
"""Maximum directories of one kind per bookie: one small file lists their paths."""


def reason_of(problem: ErrorDetails) -> str:
    """Return the reason for which a value is refused, as the end of a sentence."""
    if problem["type"] in _NOT_A_SIZE:
        return "must be a size such as 64MiB"
    return problem["msg"].removeprefix("Value error, ")


def address(value: str) -> str:
    """Check HOST:PORT."""
    match = _ADDRESS.fullmatch(value)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError("expected HOST:PORT, with a port up to 65535")
    return value


def address_or_none(value: str) -> str:
    """A host and a port, or an empty string."""
    return value and address(value)


def address_off_or_none(value: str) -> str:
    """A host and a port, ``off``, or an empty string."""
    return value if value == OFF else address_or_none(value)


def bookie_id_or_none(value: str) -> str:
    """Check a bookie id, or an empty string."""
    if value and _BOOKIE_ID.fullmatch(value) is None:
        raise ValueError("expected 1 to 128 letters, digits or . _ : -")
    return value


def _split(value: object) -> object:
    """Split a comma-separated environment variable."""
    if isinstance(value, str):
        return tuple(path.strip() for path in value.split(",")) if value.strip() else ()
    return value


def _paths(value: tuple[str, ...]) -> tuple[str, ...]:
    for path in value:
        if _PATH.fullmatch(path) is None:
            raise ValueError("expected absolute paths of up to 200 printable ASCII characters, without space and comma")
    paths = tuple(path.rstrip("/") or "/" for path in value)
    if len(paths) > MAX_DIRECTORIES or len(set(paths)) < len(paths):
        raise ValueError(f"expected at most {MAX_DIRECTORIES} directories, each once")
    return paths


Directories = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_paths)]
SecurityDirectory = Annotated[
    str,
    Field(
        max_length=4_096,
        description="Directory of certificates, keys and access rules, for TLS on all connections: "
        "docs/operate/security.md; empty: no security.",
    ),
]
Insecure = Annotated[
    bool,
    Field(
        description="Serve other machines without security: every client that reaches the process may read and "
        "delete everything."
    ),
]
ArchiveKeysFile = Annotated[
    str,
    Field(
        max_length=4_096,
        description="File with the keys of an encrypted archive: docs/operate/security.md; empty: the archive is not "
        "encrypted, and encrypted objects cannot be read.",
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
        description="Endpoint for spans of adds and reads (OTLP over HTTP), and the share of them that is traced: "
        "`http://HOST:4318,share=0.01`; a bookie follows the decision of the client. Needs the extra `traces`: "
        "docs/operate/tracing.md; empty: no traces.",
    ),
]


Hosts = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], BeforeValidator(_split)]
AddressList = Annotated[
    tuple[Annotated[str, Field(max_length=260), AfterValidator(address)], ...], BeforeValidator(_split)
]
