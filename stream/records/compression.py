"""Compression of envelope bodies. Pure."""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any, Final

from tallybook.core.errors import EnvelopeDamaged, InvalidArgument
from tallybook.runtime.extras import NeedsExtra

WORTH_IT_BYTES: Final = 128
"""Smaller bodies are not compressed."""


class Compression(IntEnum):
    """Compression methods, with their numbers in an envelope."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2

    @classmethod
    def named(cls, name: str) -> Compression:
        """The compression with this name: ``none``, ``zstd`` or ``lz4``.

        Raises:
            InvalidArgument: unknown name.
        """
        try:
            return cls[name.upper()]
        except KeyError:
            raise InvalidArgument(f"the compression must be none, zstd or lz4, not {name!r}") from None


_CODECS: Final = {Compression.ZSTD: "zstd", Compression.LZ4: "lz4_raw"}


def compressed(body: bytes, compression: Compression) -> tuple[Compression, bytes]:
    """Compress a body; return the method used (``NONE`` if compression does not help) and the bytes."""
    if compression is Compression.NONE or len(body) < WORTH_IT_BYTES:
        return Compression.NONE, body
    smaller: bytes = _pyarrow().compress(body, codec=_CODECS[compression], asbytes=True)
    return (compression, smaller) if len(smaller) < len(body) else (Compression.NONE, body)


def decompressed(body: memoryview, compression: Compression, raw_bytes: int) -> bytes:
    """Decompress a body of ``raw_bytes`` bytes.

    Raises:
        EnvelopeDamaged: it cannot be decompressed to this size.
    """
    if not raw_bytes:
        raise EnvelopeDamaged("the body of an envelope is compressed, and empty")
    codec = _pyarrow().Codec(_CODECS[compression])
    try:
        raw: bytes = codec.decompress(body, raw_bytes, asbytes=True)
    except (OSError, ValueError) as error:
        raise EnvelopeDamaged(f"the body of an envelope cannot be decompressed: {error}") from error
    if compression is Compression.LZ4 and _fits(codec, body, raw_bytes - 1):
        raise EnvelopeDamaged(f"the body of an envelope has fewer than {raw_bytes} bytes")
    return raw


@cache
def _pyarrow() -> Any:
    """The library; imported here, because only compressed streams need it."""
    with NeedsExtra("a compressed stream"):
        import pyarrow as pa  # noqa: PLC0415

    return pa


def _fits(codec: Any, body: memoryview, raw_bytes: int) -> bool:
    """Whether the decompressed body fits ``raw_bytes``.

    With LZ4, Arrow does not return the decompressed size, and leaves the rest of the buffer uninitialized. With
    Zstandard it checks the size.
    """
    try:
        codec.decompress(body, raw_bytes)
    except OSError:
        return False
    return True
