"""Spans of a traced add on its way through the bookie. Untraced adds have none.

    bookie.serve             arrival ................................ answer
      waits                        (only on the slow path)
      bookie.journal                    appended ............. durable
        bookie.journal.write                       one group commit

The stream that received the add has the span of the request itself.
"""

from __future__ import annotations

from tallybook.core.error_codes import error_class
from tallybook.runtime.tracing.port import Span

from ..journal.group_commit import Commit
from ..spans import JOURNAL, JOURNAL_WRITE


class TracedAdd:
    """The spans of one add.

    Args:
        span: of the request.
    """

    __slots__ = ("_journal", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._journal: Span | None = None

    def waits(self) -> None:
        """The add took the slow path: it waits for the ledger's state, a lookup of held batches, or space."""
        self._span.event("waits")

    def to_journal(self) -> None:
        """The journal is about to get the record."""
        self._journal = self._span.child(JOURNAL)

    def in_cache(self) -> None:
        """The batch is in the write cache, and readable."""
        self._span.event("in the write cache")

    def over(self, code: int, commit: Commit | None) -> None:
        """The add is durable, or has failed.

        Args:
            commit: the block that made it durable.
        """
        journal = self._journal
        if journal is None:
            return
        if not code and commit is not None:
            size, records = commit.size_bytes, len(commit.on_durable)
            journal.past(JOURNAL_WRITE, commit.taken_seconds, commit_bytes=size, commit_records=records)
        journal.end(error_class(code).__name__ if code else None)
