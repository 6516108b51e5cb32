"""Python processes of Spark: their garbage collector leaves the imported modules alone, and nothing else."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from tallybook.spark import worker


class Loop:
    """An object that refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "_settled", False)
    yield
    gc.unfreeze()


def test_a_worker_exempts_what_exists_at_its_first_task_and_collects_what_comes_later() -> None:
    worker.settle_worker()
    exempt = gc.get_freeze_count()
    assert exempt > 10_000
    later = weakref.ref(Loop())
    worker.settle_worker()
    assert gc.get_freeze_count() <= exempt, "a second task exempts nothing"
    gc.collect()
    assert later() is None
