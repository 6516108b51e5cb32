"""Whether the metadata are an older copy of themselves, as bookies have found out when they started."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tallybook.core.errors import NewerFormat
from tallybook.metadata.behind import RECORD, REMEDY, UNREADABLE, unapproved
from tallybook.metadata.store import MetadataStore

from .fsck_finding import Finding, Step


async def check_age(store: MetadataStore, step: Step) -> AsyncIterator[Finding]:
    """Tell that the store was behind its bookies, unless an operator has approved it.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    step()
    try:
        found = await unapproved(store)
    except NewerFormat:
        return  # told of with the other records
    if found is not None and found is not UNREADABLE:  # likewise
        yield Finding(f"{found.told}; bookies drop nothing", f"record {RECORD}", "bad", REMEDY)
