"""Index tables in memory: numpy columns, a few bytes per page and batch.

An object of a gigabyte has some 16,000 pages; as Python objects they would take megabytes of the index cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tallybook.core.limits import BATCH_DIGEST_BYTES

from .batch_rows import BatchAttributes
from .page_scan import Page

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PageTable:
    """The pages of the payload column of one row group."""

    first_rows: Numbers
    """One more than there are pages: the last is the number of rows."""
    offsets: Numbers
    """One more than there are pages: the last is the end of the column."""
    header_bytes: Numbers
    raw_bytes: Numbers
    crcs: Numbers

    def __len__(self) -> int:
        return len(self.crcs)

    @property
    def cost_bytes(self) -> int:
        """Memory that it takes in a cache."""
        return 5 * self.first_rows.nbytes

    def at_row(self, row: int) -> int:
        """Number of the page that contains ``row``."""
        return int(np.searchsorted(self.first_rows, row, side="right")) - 1

    def page(self, number: int) -> Page:
        """The page with this number."""
        offset, header = int(self.offsets[number]), int(self.header_bytes[number])
        body = int(self.offsets[number + 1]) - offset - header
        return Page(
            int(self.first_rows[number]), offset, header, body, int(self.raw_bytes[number]), int(self.crcs[number])
        )

    def rows_of(self, number: int) -> int:
        """Number of rows of a page."""
        return int(self.first_rows[number + 1] - self.first_rows[number])


@dataclass(frozen=True, slots=True)
class BatchTable:
    """The batches of one run."""

    first_ids: Numbers
    """One more than there are batches: the last is the id after the run."""
    payload_bytes: Numbers
    lacs: Numbers
    ledger_lengths: Numbers
    written_at_us: Numbers
    crcs: Numbers
    digests: bytes

    def __len__(self) -> int:
        return len(self.crcs)

    @property
    def cost_bytes(self) -> int:
        """Memory that it takes in a cache."""
        return 6 * self.first_ids.nbytes + len(self.digests)

    def holding(self, entry_id: int) -> int:
        """Number of the batch that contains ``entry_id``."""
        return int(np.searchsorted(self.first_ids, entry_id, side="right")) - 1

    def facts(self, number: int) -> BatchAttributes:
        """Attributes of the batch with this number."""
        first = int(self.first_ids[number])
        return BatchAttributes(
            first,
            int(self.first_ids[number + 1]) - first,
            int(self.payload_bytes[number]),
            int(self.lacs[number]),
            int(self.ledger_lengths[number]),
            int(self.written_at_us[number]),
            int(self.crcs[number]),
            self.digests[number * BATCH_DIGEST_BYTES : (number + 1) * BATCH_DIGEST_BYTES],
        )
