"""Fixtures for regression tests of streams."""

import pytest

from tallybook.stream.catalog import head


@pytest.fixture
def small_chapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that are so small that a few segments are moved into chapters."""
    monkeypatch.setattr(head, "MAX_SEGMENTS", 6)
    monkeypatch.setattr(head, "CHAPTER_SEGMENTS", 4)
