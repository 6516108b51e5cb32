"""What is told of an add that somebody has traced, on its way through the bookie. Others have none of this.

    bookie.serve             arrival ................................ answer
      waits                        (only where something was to be waited for)
      bookie.journal                    given over ........... durable
        bookie.journal.write                       one group commit

The span of the request itself is its lane's.
"""

from __future__ import annotations

from tallybook.core.errors import error_class
from tallybook.runtime.span_catalogue import JOURNAL, JOURNAL_WRITE
from tallybook.runtime.tracing import Span

from .journal.group_commit import Commit


class TracedAdd:
    """The parts of one add.

    Args:
        span: of the request.
    """

    __slots__ = ("_journal", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._journal: Span | None = None

    def waits(self) -> None:
        """It has gone the slow way: for the ledger's state, for a look at what is held, or for room."""
        self._span.event("waits")

    def to_journal(self) -> None:
        """The journal is about to get it."""
        self._journal = self._span.child(JOURNAL)

    def in_cache(self) -> None:
        """It can be read."""
        self._span.event("in the write cache")

    def over(self, code: int, commit: Commit | None) -> None:
        """It is durable, or has failed.

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
