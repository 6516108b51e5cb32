"""The policy of a stream: replication, segment size, retention, compression, deduplication."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from tallybook.core.errors import InvalidArgument
from tallybook.core.limits import KIB, MIB
from tallybook.core.settings import Settings
from tallybook.core.settings.types import ByteSize, reason_of

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_TEXT: Final = re.compile(r"([0-9]+)\s*([smhd])")
_LONGEST_S: Final = 100 * 365 * 86_400


def _seconds(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a time, not true or false")  # noqa: TRY004 (pydantic reports ValueError)
    if isinstance(value, str):
        found = _TEXT.fullmatch(value.strip())
        if found is None:
            raise ValueError("must be a time such as 90s, 15m, 72h or 7d")
        return int(found[1]) * _UNITS[found[2]]
    return value


Duration: TypeAlias = Annotated[int, BeforeValidator(_seconds), Field(ge=0, le=_LONGEST_S)]
"""Seconds; as text also minutes, hours and days."""


class StreamPolicy(Settings):
    """How a stream is written and retained. Sizes and times may be given as text, such as ``256MiB`` and ``72h``."""

    ensemble: int = Field(default=3, ge=1, description="Bookies over which a segment is spread.")
    write_quorum: int = Field(default=3, ge=1, description="Bookies that store each record.")
    ack_quorum: int = Field(
        default=2, ge=1, description="Bookies that have a record on disk before it is acknowledged."
    )
    roll_bytes: ByteSize = Field(
        default=ByteSize(256 * MIB), ge=KIB, description="Payload at which a segment ends and the next one begins."
    )
    roll_after: Duration = Field(default=7_200, ge=1, description="Age at which a segment with records ends.")
    retention: Duration | None = Field(
        default=None, description="How long a sealed segment is kept; if not given, for ever."
    )
    retention_bytes: ByteSize | None = Field(
        default=None,
        ge=KIB,
        description="Payload of sealed segments that is kept: the oldest segment is deleted while those after it hold "
        "at least as much; if not given, no limit.",
    )
    max_bytes: ByteSize | None = Field(
        default=None, ge=KIB, description="Stored payload at which appends are refused; if not given, no limit."
    )
    offload_after: Duration | None = Field(
        default=None,
        description="Age at which a sealed segment may be archived; if not given, the offloader's setting.",
    )
    compression: Literal["none", "zstd", "lz4"] = Field(default="none", description="How records are compressed.")
    dedup_records: int = Field(
        default=10_000,
        ge=0,
        le=1_000_000,
        description="Deduplication window in records: within it, an id is stored once; 0: no deduplication.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.ensemble >= self.write_quorum >= self.ack_quorum:
            raise ValueError("must be ensemble >= write_quorum >= ack_quorum")
        return self

    @property
    def has_limits(self) -> bool:
        """Whether it has a limit in bytes, which a record of format 1 cannot have."""
        return self.retention_bytes is not None or self.max_bytes is not None

    @classmethod
    def of(cls, base: StreamPolicy | None = None, **changes: Any) -> StreamPolicy:
        """A copy of ``base``, or of the default policy, with some values changed.

        Raises:
            InvalidArgument: unknown setting, or invalid value.
        """
        try:
            return cls.model_validate({**({} if base is None else base.model_dump()), **changes})
        except ValidationError as error:
            raise InvalidArgument(_sentence(error)) from error


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"the policy of a stream{f', {where}' if where else ''}: {reason_of(first)}"
