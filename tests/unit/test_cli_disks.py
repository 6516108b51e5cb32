"""Disks of bookies in the output of the command line: listed only if they add to the line of their bookie."""

import pytest

from tallybook.cli.disks import DISK_COLUMNS, disk_rows, free_bytes_of_fullest
from tallybook.core.answers import BookieStatus, DirectorySpace
from tallybook.metadata.records.bookie_modes import RequestedMode
from tallybook.repair.status.overview import BookieView

JOURNAL = DirectorySpace("fast/journal", "journal", 1, 100, 1, "room")
LOGS = DirectorySpace("big/ledgers", "ledgers", 2, 4_000, 1_000, "room")
MORE_LOGS = DirectorySpace("huge/ledgers", "ledgers", 3, 9_000, 8_000, "room")
INDEX = DirectorySpace("fast/index", "index", 1, 100, 50, "room")
FAILED = DirectorySpace("gone/ledgers", "ledgers", 0, 0, 0, "not known")


def status(*directories: DirectorySpace) -> BookieStatus:
    return BookieStatus(False, 0.75, 8_000, 0, 0, 0.0, 0, 0, 0, 0, 0, 1.0, directories)


def bookie(*directories: DirectorySpace) -> BookieView:
    return BookieView("b1", None, status(*directories), RequestedMode.NORMAL)


@pytest.mark.parametrize(
    ("directories", "free"),
    [
        ((JOURNAL, LOGS, MORE_LOGS, INDEX), 1_000),
        ((JOURNAL, MORE_LOGS, INDEX), 50),
        ((JOURNAL, FAILED, MORE_LOGS), 8_000),
        ((FAILED,), 8_000),
        ((), 8_000),
    ],
    ids=["entry logs", "the index", "a disk that says nothing", "none that says anything", "an earlier version"],
)
def test_what_is_free_is_of_the_disk_that_is_said_to_be_the_fullest(directories, free):
    assert free_bytes_of_fullest(status(*directories)) == free


@pytest.mark.parametrize(
    ("directories", "listed"),
    [
        ((), False),
        ((LOGS, LOGS._replace(path="big/index", role="index")), False),
        ((LOGS, INDEX), True),
        ((LOGS._replace(state="warned"),), True),
        ((FAILED,), True),
    ],
    ids=["an earlier version", "one disk", "two disks", "one that fills up", "one that says nothing"],
)
def test_directories_are_listed_where_there_are_several_disks_or_one_has_no_space(directories, listed):
    rows = disk_rows([bookie(*directories)])
    assert [row["directory"] for row in rows] == [each.path for each in directories if listed]
    assert all(set(row) <= set(DISK_COLUMNS) for row in rows)
