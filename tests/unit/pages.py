"""Parser for pages with tables that name a test in each row."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Page:
    """One page.

    Args:
        path: below the root.
        first: the head of the first column of its tables; the last column has the tests.
    """

    def __init__(self, path: str, first: str) -> None:
        self._lines = [line for line in (ROOT / path).read_text("utf-8").splitlines() if line.startswith("| ")]
        self._lines = [line for line in self._lines if not line.startswith(f"| {first} |")]

    def rows(self) -> dict[str, list[str]]:
        """The tests of each line. Every line of the tables is one, and no two say the same."""
        cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in self._lines]
        found = {row[0]: re.findall(r"`([^`]+)`", row[-1]) for row in cells}
        assert len(found) == len(self._lines)
        return found

    def check_tests(self) -> None:
        """Each line names tests, and they are there."""
        for what, tests in self.rows().items():
            assert tests, what
            for test in tests:
                file, _, name = test.partition("::")
                assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), (
                    what,
                    test,
                )
