"""Lifetimes of handles: the effect of their end on calls, and on no other handle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from tallybook.core.errors import BookieUnavailable, HandleClosed, InvalidArgument, LedgerClosed, Outcome, StreamClosed
from tallybook.runtime.concurrency.handle_lifetime import Lifetime, close_or_abandon, end_block


async def used(*lifetimes: Lifetime) -> None:
    """Wait for ever, under the use of all of them."""
    if lifetimes:
        with lifetimes[0].use():
            await used(*lifetimes[1:])
    await asyncio.Event().wait()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_end_of_a_parent_is_that_of_its_children_each_with_its_error() -> None:
    parent = Lifetime("the client")
    child, other = Lifetime("ledger 7", parent=parent, error=LedgerClosed), Lifetime("apart")
    waiting = [asyncio.ensure_future(used(each)) for each in (parent, child, other)]
    await turns()
    parent.end()
    await turns()
    assert [type(each.exception()) for each in waiting[:2]] == [HandleClosed, LedgerClosed]
    assert str(waiting[1].exception()) == "the client is closed"
    assert waiting[1].exception().outcome is Outcome.UNKNOWN
    assert not waiting[2].done()
    late = Lifetime("ledger 8", parent=parent, error=LedgerClosed)
    with pytest.raises(LedgerClosed) as refused:
        late.check()
    assert refused.value.outcome is Outcome.NOT_DONE
    waiting[2].cancel()


async def test_a_task_that_waits_under_several_is_cancelled_for_none_of_them() -> None:
    parent = Lifetime("the client")
    child = Lifetime("the store", parent=parent, error=StreamClosed)
    waiting = asyncio.ensure_future(used(parent, child, parent))
    await turns()
    parent.end()
    await turns()
    assert isinstance(waiting.exception(), HandleClosed)
    assert waiting.cancelling() == 0, "it may wait for other things as before"


async def test_failures_caused_by_a_close_are_reported_as_the_close() -> None:
    lifetime = Lifetime("the client")

    async def call() -> None:
        with lifetime.use():
            # A handle may be closed by one of its own calls.
            lifetime.end()
            raise BookieUnavailable("the connections are closed")

    with pytest.raises(HandleClosed) as closed:
        await call()
    assert isinstance(closed.value.__cause__, BookieUnavailable)


def test_a_handle_is_of_no_use_outside_of_an_event_loop():
    with pytest.raises(InvalidArgument, match="outside of its event loop"):
        Lifetime("the client").check()


class Closing:
    """A handle whose close fails."""

    def __init__(self) -> None:
        self.abandoned = 0

    async def close(self) -> None:
        raise BookieUnavailable("away for a moment")

    def abandon(self) -> None:
        self.abandoned += 1


class BlockingClosing(Closing):
    def close(self) -> None:  # type: ignore[override]
        raise BookieUnavailable("away for a moment")


def test_what_cannot_be_closed_at_the_end_of_a_block_is_abandoned():
    async def main() -> None:
        handle = Closing()
        with pytest.raises(BookieUnavailable):
            await close_or_abandon(handle, failed=False)
        await close_or_abandon(handle, failed=True)
        assert handle.abandoned == 2

    asyncio.run(main())
    blocking = BlockingClosing()
    with pytest.raises(BookieUnavailable):
        end_block(blocking, failed=False)
    end_block(blocking, failed=True)
    assert blocking.abandoned == 2


def in_a_child(call: Callable[[], None]) -> type[BaseException] | None:
    """The class of what ``call`` raises in a forked child."""
    child = os.fork()
    if child:
        return {0: None, 1: InvalidArgument}[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
    try:
        call()
    except InvalidArgument:
        os._exit(1)
    finally:
        os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_call_in_a_forked_child_is_refused() -> None:
    """A fork copies the loop, which seems to run in the child, too."""

    async def use() -> type[BaseException] | None:
        lifetime = Lifetime("it")
        lifetime.check()
        return in_a_child(lifetime.check)

    assert asyncio.run(use()) is InvalidArgument
