"""Protocol limits: constants that peers and formats rely on, independent of the configuration.

A number belongs here if a change would break a format or a peer. Settings that an operator may change are in
``settings``.
"""

from __future__ import annotations

from typing import Final

from .errors import check

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

SECTOR_BYTES: Final = 512
"""The unit of partial writes and of damage in simulations. Nothing relies on its being written atomically."""

BLOCK_BYTES: Final = 4 * KIB
"""Alignment of direct writes: of address, offset and size."""

MAX_COMMIT_BYTES: Final = 1 * MIB
"""Largest group commit of the journal, header included."""

MAX_BATCH_BYTES: Final = MAX_COMMIT_BYTES - 8 * KIB
"""Largest batch: it must fit into one group commit with its headers."""

MAX_BATCH_ENTRIES: Final = 16_384
"""Maximum entries in one batch. It bounds what a reader allocates before it has verified a batch."""

BATCH_HEADER_BYTES: Final = 64
BATCH_TABLE_ROW_BYTES: Final = 8
BATCH_DIGEST_BYTES: Final = 32

MAX_ENTRY_BYTES: Final = MAX_BATCH_BYTES - BATCH_HEADER_BYTES - BATCH_TABLE_ROW_BYTES - BATCH_DIGEST_BYTES
"""Largest payload of one entry: alone in its batch, with either digest."""

MAX_MESSAGE_BYTES: Final = 5 * MIB
"""Largest message on any stream between client and bookie."""

MAX_API_MESSAGE_BYTES: Final = 4 * MIB
"""Largest message between a gateway and its clients: the default limit of gRPC libraries."""

MAX_PAGE: Final = 1_000
"""Maximum rows in one page of a bookie's listing."""

MAX_ENSEMBLE: Final = 64
"""Largest ensemble."""

MAX_STRIPE_ENTRIES: Final = 1 << 20
DEFAULT_STRIPE_ENTRIES: Final = 1024

MAX_CUSTOM_METADATA_BYTES: Final = 64 * KIB
MAX_PASSWORD_BYTES: Final = 1 * KIB

MAX_METADATA_BYTES: Final = 960 * KIB
"""Largest encoded value in the metadata store: ZooKeeper drops a connection that sends a packet of 1 MiB."""

MAX_COOKIE_BYTES: Final = 64 * KIB
MAX_BOOKIE_ID_CHARS: Final = 128

LEDGER_ID_BLOCK: Final = 64
"""Largest block of ledger ids that a client takes from the shared counter; its first block has one id."""

KEY_BYTES: Final = 32
"""Length of the derived ledger key on the wire, and of its verifier in the metadata."""

check(MAX_ENTRY_BYTES > 1_000_000, "the largest entry must hold a megabyte")
check(MAX_BATCH_BYTES % SECTOR_BYTES == 0, "a batch limit is a whole number of sectors")
check(MAX_API_MESSAGE_BYTES >= 3 * MAX_ENTRY_BYTES, "a message must hold 2 MiB of entries plus one of the largest size")
check(MAX_MESSAGE_BYTES >= 4 * MAX_BATCH_BYTES, "a read answer holds several batches")
