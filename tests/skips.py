"""Why a test may be skipped. A run with any other skipped test fails, so that none goes missing unseen."""

import re

REASONS = (
    r"could not import 'playwright",
    r"make console-test gives it a browser",
    r"make console-screenshots wants them",
    r"only (glibc|root|Linux) ",
    r"has no such address",
    r"this process may not (mount a file system|have \d+ files open)",
    r"there is (one file system|no O_DIRECT) here",
    r"there is no block device that this user may read",
    r"reads are slowed down by a library that needs a C compiler",
    r"the example in \w+ needs .*, which was not found",
    r"the code of revision \w+ is not here",
    r"a ZooKeeper that speaks TLS lets nobody in",
)


def unexpected(reasons: list[str]) -> list[str]:
    """The ``reasons`` that are not listed here."""
    return [each for each in reasons if not re.match(f"(Skipped: )?({'|'.join(REASONS)})", each)]
