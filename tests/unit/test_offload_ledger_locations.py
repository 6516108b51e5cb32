"""``offload/bucket/ledger_locations.py``: what may be removed, by metadata, manifest and listing of a bucket."""

import re
from dataclasses import replace
from itertools import product

import pytest

from tallybook.core.ids import NO_IDENTITY
from tallybook.metadata.store import Deletion
from tallybook.offload.bucket.ledger_locations import ledger_in_need, locate_ledgers, unknown_ledger

from .test_offload_policy import ledger, receipt

OLD, NEW = "sets/old.parquet", "sets/new.parquet"
SIZE = receipt(1, ledger(1)).object_bytes

METADATA = {
    "missing": None,
    "deleted": None,
    "not archived": ledger(1),
    "in old": replace(ledger(1), archived=receipt(1, ledger(1), key=OLD)),
    "in new": replace(ledger(1), archived=receipt(2, ledger(1), key=NEW)),
}
MANIFEST = {"nothing": {}, "old": {1: OLD}, "new": {1: NEW}}
LISTING = {"neither": {}, "old": {OLD: SIZE}, "new": {NEW: SIZE}, "both": {OLD: SIZE, NEW: SIZE}, "torn": {NEW: 1}}
REFUSED = {"new": OLD, "old": NEW}

TABLE = """
metadata      manifest  listing   counts   is
missing       nothing   both      -        -
missing       new       both      new      missing
missing       new       neither   new      missing
deleted       new       both      -        -
not archived  nothing   both      -        -
not archived  new       both      new      astray
not archived  new       old       -        -
in old        nothing   old       old      -
in old        new       both      old      -
in old        new       new       new      astray
in old        new       neither   old      lost
in old        old       new       old      lost
in new        old       both      new      -
in new        old       old       old      astray
in new        old       torn      new      lost
in new        new       torn      new      lost
in new        new       old       new      lost
in old        nothing   new?      old      unknown
in old        new       new?      new      unknown
in new        old       old?      old      unknown
in new        new       old?      new      unknown
in old        old       old?      old      -
not archived  new       old?      -        -
"""


def rows() -> list[list[str]]:
    return [re.split("  +", line.strip()) for line in TABLE.strip().split("\n")[1:]]


@pytest.mark.parametrize(("metadata", "manifest", "listing", "counts", "what"), rows())
def test_a_ledger_counts_where_its_metadata_say_if_that_is_there_and_else_where_the_manifest_says(
    metadata: str, manifest: str, listing: str, counts: str, what: str
) -> None:
    known = METADATA[metadata]
    deleted = [1] if metadata == "deleted" else []
    listed = listing.removesuffix("?")
    refused = [REFUSED[listed]] if listed != listing else []
    found = locate_ledgers({} if known is None else {1: known}, MANIFEST[manifest], LISTING[listed], deleted, refused)
    assert found.counted == ({} if counts == "-" else {1: {"old": OLD, "new": NEW}[counts]})
    told = {"missing": found.missing, "astray": found.astray, "lost": found.lost, "unknown": found.unknown}
    assert {name for name, each in told.items() if each} == {what} - {"-"}
    assert found.kept == (set(found.counted.values()) if what in {"missing", "astray", "unknown"} else set())


@pytest.mark.parametrize(("metadata", "listing"), list(product(METADATA, LISTING)))
def test_an_object_may_go_only_if_its_ledger_was_deleted_or_is_in_an_object_that_is_there(
    metadata: str, listing: str
) -> None:
    known = METADATA[metadata]
    counted = {1: NEW} if metadata == "missing" else {}
    needed = ledger_in_need(
        [(1, NO_IDENTITY)], {} if known is None else {1: known}, {1: None}, counted, LISTING[listing]
    )
    elsewhere = metadata == f"in {listing}" or (metadata.startswith("in ") and listing == "both")
    assert (needed is None) == (metadata == "deleted" or elsewhere)


ANOTHER = replace(METADATA["in new"] or ledger(1), creator_token="another")
OF_ANOTHER, OF_IT = Deletion.of(ANOTHER.identity), Deletion.of(ledger(1).identity)

HELD_TABLE = """
the metadata have  on record as deleted  the manifest counts  names the object  accounted for
it                 -                     -                    no                yes
another            -                     -                    yes               no
another            -                     it                   yes               no
nothing            another               -                    yes               no
nothing            it                    -                    no                yes
nothing            one                   -                    no                yes
nothing            -                     -                    no                no
nothing            -                     -                    yes               yes
nothing            -                     it                   yes               no
"""


@pytest.mark.parametrize("row", [re.split("  +", line.strip()) for line in HELD_TABLE.strip().split("\n")[1:]])
def test_another_ledger_of_the_same_id_says_nothing_of_the_one_in_an_object(row: list[str]) -> None:
    known, deleted, counts, names, accounted = row
    ledgers = {"it": {1: METADATA["in new"]}, "another": {1: ANOTHER}, "nothing": {}}[known]
    deletion = {"-": None, "it": OF_IT, "another": OF_ANOTHER, "one": Deletion(NO_IDENTITY)}[deleted]
    counted = {1: NEW} if counts == "it" else {}
    held = [(1, ledger(1).identity)]
    found = unknown_ledger(held, ledgers, {1: deletion}, counted, named=names == "yes")  # type: ignore[arg-type]
    assert found == (None if accounted == "yes" else 1)


def test_each_ledger_of_an_object_is_looked_at() -> None:
    known = {each: replace(ledger(each), archived=receipt(2, ledger(each), key=NEW)) for each in (1, 2)}
    held = [(each, NO_IDENTITY) for each in (1, 2, 3)]
    assert ledger_in_need(held, known, {3: None}, {3: OLD}, LISTING["both"]) == 3
    assert ledger_in_need(held, known, {3: Deletion(NO_IDENTITY)}, {}, LISTING["both"]) is None
