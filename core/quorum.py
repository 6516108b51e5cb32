"""Quorum arithmetic: which bookies store an entry, and how many answers decide a question.

Each entry is written to the Qw bookies of its *write set*, out of the E of its fragment's ensemble, and confirmed by Qa
of them (E >= Qw >= Qa >= 1). With E > Qw, entries are striped over the ensemble in runs of ``stripe_entries``.

Two questions recur, and both have the answer Qw - Qa + 1, because any set of that many members of a write set meets
every ack quorum in it:

- *coverage*: enough members of **every** write set answered (fenced, or reported their LAC) that no ack quorum can
  form, or have formed, without one of them;
- *absence*: enough members of **one** write set truthfully do not store an entry, so it was never confirmed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from .errors import InvalidArgument
from .ids import MAX_ID
from .limits import DEFAULT_STRIPE_ENTRIES, MAX_ENSEMBLE, MAX_STRIPE_ENTRIES


@dataclass(frozen=True, slots=True)
class Quorum:
    """Replication of a ledger: ensemble size, write quorum, ack quorum and stripe length. Fixed at creation.

    Raises:
        InvalidArgument: the sizes do not satisfy 64 >= E >= Qw >= Qa >= 1, or the stripe
            is not in 1 .. 2^20.
    """

    ensemble: int
    write_quorum: int
    ack_quorum: int
    stripe_entries: int = DEFAULT_STRIPE_ENTRIES
    _write_sets: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = (self.ensemble, self.write_quorum, self.ack_quorum, self.stripe_entries)
        if any(isinstance(size, bool) or not isinstance(size, int) for size in sizes):
            raise InvalidArgument("ensemble, write_quorum, ack_quorum and stripe_entries must be integers")
        if not MAX_ENSEMBLE >= self.ensemble >= self.write_quorum >= self.ack_quorum >= 1:
            raise InvalidArgument(
                f"quorum sizes must satisfy {MAX_ENSEMBLE} >= ensemble >= write_quorum >= ack_quorum >= 1, got "
                f"ensemble={self.ensemble} write_quorum={self.write_quorum} ack_quorum={self.ack_quorum}"
            )
        if not 1 <= self.stripe_entries <= MAX_STRIPE_ENTRIES:
            raise InvalidArgument(f"stripe_entries must lie in 1 .. {MAX_STRIPE_ENTRIES}, got {self.stripe_entries}")
        starts = range(self.ensemble) if self.striped else range(1)
        sets = tuple(tuple((start + i) % self.ensemble for i in range(self.write_quorum)) for start in starts)
        object.__setattr__(self, "_write_sets", sets)

    @property
    def striped(self) -> bool:
        """Whether different entries go to different bookies (E > Qw)."""
        return self.ensemble > self.write_quorum

    @property
    def decisive(self) -> int:
        """Members of a write set that intersect every ack quorum in it: Qw - Qa + 1."""
        return self.write_quorum - self.ack_quorum + 1

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Ensemble positions that store ``entry_id``, the first choice first.

        With E > Qw: ``(entry_id // stripe_entries + i) mod E`` for ``0 <= i < Qw``. Stored ledgers depend on it.
        """
        if not self.striped:
            return self._write_sets[0]
        return self._write_sets[(entry_id // self.stripe_entries) % self.ensemble]

    def write_sets(self) -> tuple[tuple[int, ...], ...]:
        """Every distinct write set of the ensemble."""
        return self._write_sets

    def stripe_end(self, entry_id: int) -> int:
        """Last entry id that may share a batch with ``entry_id``."""
        if not self.striped:
            return MAX_ID
        return min(MAX_ID, (entry_id // self.stripe_entries + 1) * self.stripe_entries - 1)

    def acked(self, positions: Collection[int], entry_id: int) -> bool:
        """Whether acks from ``positions`` confirm ``entry_id``."""
        return sum(p in positions for p in self.write_set(entry_id)) >= self.ack_quorum

    def covered(self, positions: Collection[int]) -> bool:
        """Whether the answers from ``positions`` include a member of every possible ack quorum."""
        return all(sum(p in positions for p in members) >= self.decisive for members in self._write_sets)

    def visible(self, positions: Collection[int]) -> bool:
        """Whether every reader learns what the bookies at ``positions`` know: all that are ``covered`` include one."""
        return not self.covered({*range(self.ensemble)} - {*positions})

    def absent(self, positions: Collection[int], entry_id: int) -> bool:
        """Whether ABSENT from ``positions`` proves that ``entry_id`` was never confirmed."""
        return sum(p in positions for p in self.write_set(entry_id)) >= self.decisive

    def writable(self, positions: Collection[int]) -> bool:
        """Whether the bookies at ``positions`` alone can confirm entries of every write set."""
        return all(sum(p in positions for p in members) >= self.ack_quorum for members in self._write_sets)
