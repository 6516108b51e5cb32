"""How the bodies of envelopes are made smaller. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tallybook.core.errors import EnvelopeDamaged, InvalidArgument

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

    try:
        raw: bytes = pa.decompress(body, decompressed_size=raw_bytes, codec=_CODECS[compression], asbytes=True)
    except (OSError, ValueError) as error:
        raise EnvelopeDamaged(f"the body of an envelope cannot be decompressed: {error}") from error
    if len(raw) != raw_bytes:
        raise EnvelopeDamaged(f"the body of an envelope has {len(raw)} bytes, not {raw_bytes}")
    return raw
