"""docs/reference/bad-input.md and the tests agree: every kind of bad input has a row with existing tests."""

from .pages import Page

PAGE = Page("docs/reference/bad-input.md", "input")

KINDS = 93
"""Number of kinds of untrusted input. A row dropped from the page has to be counted here, too."""


def test_no_kind_of_input_has_lost_its_line() -> None:
    assert len(PAGE.rows()) == KINDS


def test_every_test_that_the_page_names_is_there_and_each_line_has_one() -> None:
    PAGE.check_tests()
