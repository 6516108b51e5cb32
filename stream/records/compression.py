"""How the bodies of envelopes are made smaller. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from tallybook.core.errors import EnvelopeDamaged, InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

WORTH_IT_BYTES: Final = 128
"""Smaller bodies stay as they are."""


class Compression(IntEnum):
    """By its number in an envelope."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2

    @classmethod
    def named(cls, name: str) -> Compression:
        """The compression of that name: ``none``, ``zstd`` or ``lz4``.

        Raises:
            InvalidArgument: there is none.
        """
        try:
            return cls[name.upper()]
        except KeyError:
            raise InvalidArgument(f"a compression is none, zstd or lz4, not {name!r}") from None


_CODECS: Final = {Compression.ZSTD: "zstd", Compression.LZ4: "lz4_raw"}


def compressed(body: bytes, compression: Compression) -> tuple[Compression, bytes]:
    """The body made smaller, and by what: by nothing, where that would not make it smaller."""
    if compression is Compression.NONE or len(body) < WORTH_IT_BYTES:
        return Compression.NONE, body
    # Only streams that are compressed pay for loading it.
    import pyarrow as pa  # noqa: PLC0415

    smaller: bytes = pa.compress(body, codec=_CODECS[compression], asbytes=True)
    return (compression, smaller) if len(smaller) < len(body) else (Compression.NONE, body)


def decompressed(body: memoryview, compression: Compression, raw_bytes: int) -> bytes:
    """The body as it was, which had ``raw_bytes``.

    Raises:
        EnvelopeDamaged: it is not what ``compressed`` made of so many bytes.
    """
    import pyarrow as pa  # noqa: PLC0415

    if not raw_bytes:
        raise EnvelopeDamaged("the body of an envelope is compressed, and empty")
    codec = pa.Codec(_CODECS[compression])
    try:
        raw: bytes = codec.decompress(body, raw_bytes, asbytes=True)
    except (OSError, ValueError) as error:
        raise EnvelopeDamaged(f"the body of an envelope cannot be decompressed: {error}") from error
    if compression is Compression.LZ4 and _fits(codec, body, raw_bytes - 1):
        raise EnvelopeDamaged(f"the body of an envelope has fewer than {raw_bytes} bytes")
    return raw


def _fits(codec: pa.Codec, body: memoryview, raw_bytes: int) -> bool:
    """Whether the body is not longer than that.

    Arrow does not tell how much LZ4 made of it, and what is missing is whatever lay in memory there. With Zstandard it
    sees to it that all is there.
    """
    try:
        codec.decompress(body, raw_bytes)
    except OSError:
        return False
    return True
