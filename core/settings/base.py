"""Base class of all settings models."""

from __future__ import annotations

from pydantic import BaseModel, ByteSize, ConfigDict


class Settings(BaseModel):
    """Base model: immutable, refuses unknown names."""

    # A command needs one model only, and building all of them takes longer than most commands.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, defer_build=True)


def byte_size(value: int) -> ByteSize:
    """Default value of a size setting."""
    return ByteSize(value)
