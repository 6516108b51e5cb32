"""What a stream is made with, and how it is kept."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BeforeValidator, ByteSize, Field, ValidationError, model_validator

from tallybook.core.config import Settings
from tallybook.core.errors import InvalidArgument
from tallybook.core.limits import KIB, MIB

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_TEXT: Final = re.compile(r"([0-9]+)\s*([smhd])")
_LONGEST_S: Final = 100 * 365 * 86_400


def _seconds(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a time is wanted, not true or false")  # noqa: TRY004 (pydantic reports ValueError)
    if isinstance(value, str):
        found = _TEXT.fullmatch(value.strip())
        if found is None:
            raise ValueError("a time is wanted such as 90s, 15m, 72h or 7d")
        return int(found[1]) * _UNITS[found[2]]
    return value


Duration: TypeAlias = Annotated[int, BeforeValidator(_seconds), Field(ge=0, le=_LONGEST_S)]
"""Seconds; as text also minutes, hours and days."""


class StreamPolicy(Settings):
    """How a stream is written and kept. Sizes and times may be given as text, such as ``256MiB`` and ``72h``."""

    ensemble: int = Field(3, ge=1, description="Bookies that a segment is spread over.")
    write_quorum: int = Field(3, ge=1, description="Bookies that hold each record.")
    ack_quorum: int = Field(2, ge=1, description="Bookies that have a record on disk before it is acknowledged.")
    roll_bytes: ByteSize = Field(
        ByteSize(256 * MIB), ge=KIB, description="Payload at which a segment ends and the next one begins."
    )
    roll_after: Duration = Field(7_200, ge=1, description="Age at which a segment ends that has any record.")
    retention: Duration | None = Field(
        None, description="How long a segment is kept once it has ended; for ever, if not given."
    )
    offload_after: Duration | None = Field(
        None, description="Age at which a segment that has ended may go to the archive; if not given, the offloader's."
    )
    compression: Literal["none", "zstd", "lz4"] = Field("none", description="How records are compressed.")
    dedup_records: int = Field(
        10_000, ge=0, le=1_000_000, description="An id is not taken twice within so many records; 0: it may be."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.ensemble >= self.write_quorum >= self.ack_quorum:
            raise ValueError("ensemble >= write_quorum >= ack_quorum is wanted")
        return self

    @classmethod
    def of(cls, base: StreamPolicy | None = None, **changes: Any) -> StreamPolicy:
        """A policy like another one, or like the default, with some values changed.

        Raises:
            InvalidArgument: there is no such value, or it cannot be that.
        """
        try:
            return cls.model_validate({**({} if base is None else base.model_dump()), **changes})
        except ValidationError as error:
            raise InvalidArgument(_sentence(error)) from error


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"the policy of a stream{f', {where}' if where else ''}: {first['msg'].removeprefix('Value error, ')}"
