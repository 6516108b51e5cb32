"""``tallybook bookie drain`` and ``readonly``: order the mode of a bookie."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from tallybook.core.errors import InvalidArgument, RequestTimeout
from tallybook.core.quantities import counted
from tallybook.metadata.records.bookie_modes import RequestedMode
from tallybook.metadata.store import BookieMode
from tallybook.runtime.concurrency.backoff import Backoff, jittered

from ..options import Json, Metadata
from ..output import ResultFields, print_json
from ..progress import Progress, show_progress
from ..running import run

if TYPE_CHECKING:
    from tallybook.client.client import Client
    from tallybook.repair.status.drain import BookieReferences

_POLL_SECONDS: Final = 2.0
_WHY_SECONDS: Final = 20.0
"""Seconds between two searches for why ledgers still name the bookie: each asks bookies for copies."""
_WHY_WITHIN_SECONDS: Final = 5.0
"""Time-out of such a search, also if a bookie hangs."""
_REGISTERED_SECONDS: Final = 10.0
"""Limit of the wait until a bookie follows a mode. It polls for it every two seconds."""
_REGISTERED_POLL_SECONDS: Final = 0.2

BookieArgument = Annotated[str, typer.Argument(metavar="BOOKIE", help="Id of the bookie.")]


def drain(
    metadata: Metadata,
    bookie_id: BookieArgument,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End the drain: the bookie keeps its copies and accepts writes again.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the bookie may be switched off.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Drain even if it is known that the drain cannot finish.")
    ] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long --wait waits.", min=1)] = 86_400,
    as_json: Json = False,
) -> None:
    """Empty a bookie: it accepts no more writes, and the repair copies its entries to other bookies.

    It serves readers meanwhile, and is a source for the copies. The command prints how many ledgers still name the
    bookie, why the first ten of them do, and whether it may be switched off for good; run it again to see the progress.
    Ledgers whose copies the bookies may drop, because the archive has them, do not count. The drain is refused if too
    few other bookies take writes for a ledger of this bookie, or of another draining one, and if metadata of a ledger
    cannot be decoded.
    """
    if cancel and wait:
        raise InvalidArgument("either --cancel or --wait")
    if cancel:
        mode = run(_switch(metadata, bookie_id, RequestedMode.DRAINING, on=False))
        _show({"bookie_id": bookie_id, "wanted": mode.value}, f"{bookie_id} is not drained", as_json)
        return
    found = run(_drain(metadata, bookie_id, timeout if wait else None, force=force))
    _show(found, how_far(found), as_json)


def how_far(found: ResultFields) -> str:
    """The progress of a drain, as a sentence."""
    from tallybook.repair.status.drain import some_ids  # noqa: PLC0415 (not loaded for ``bookie run``)

    name = found["bookie_id"]
    if found["may_be_switched_off"]:
        return f"no ledger relies on {name} any more: it may be switched off"
    if found["ledgers"]:
        ledgers, growing = cast("int", found["ledgers"]), cast("int", found["growing"])
        why = cast("dict[str, str]", found.get("why", {}))
        named = [
            f"{each} ({why[str(each)]})" if str(each) in why else str(each)
            for each in cast("list[int]", found["first_ledger_ids"])
        ]
        where = f", {growing:,} of them in their last open fragment" if growing else ""
        many = counted(ledgers, "ledger still names", "ledgers still name")
        return f"{many} {name}{where}: {some_ids(named, ledgers)}"
    if found["still_chosen"]:
        return (
            f"no ledger names {name}, but new ones may still: it has not learned yet that it must accept no more writes"
        )
    return f"no ledger is known to name {name}, but not all of them could be checked: 'tallybook fsck' says why"


def readonly(
    metadata: Metadata,
    bookie_id: BookieArgument,
    off: Annotated[bool, typer.Option("--off", help="Let it accept writes again.")] = False,
    as_json: Json = False,
) -> None:
    """Make a bookie read-only. It keeps its copies and serves readers.

    The command waits up to ten seconds until the bookie has registered as read-only: until then, clients may choose it.
    """
    wanted, registered = run(_switch_read_only(metadata, bookie_id, read_only=not off))
    record = {"bookie_id": bookie_id, "wanted": wanted.value, "mode": None if registered is None else registered.value}
    _show(record, _read_only_text(bookie_id, registered, off=off), as_json)


def _read_only_text(bookie_id: str, registered: BookieMode | None, *, off: bool) -> str:
    if registered is None:
        return f"{bookie_id} is away: when it is back, it will accept {'writes again' if off else 'no more writes'}"
    if off:
        return (
            f"{bookie_id} accepts writes again"
            if registered is BookieMode.WRITABLE
            else f"{bookie_id} is no longer read-only by order, but accepts no writes yet: 'cluster status' says why"
        )
    return (
        f"{bookie_id} accepts no more writes"
        if registered is BookieMode.READ_ONLY
        else f"{bookie_id} is ordered to be read-only, but still accepts writes: 'cluster status' shows its mode"
    )


async def _switch_read_only(
    metadata: str, bookie_id: str, *, read_only: bool
) -> tuple[RequestedMode, BookieMode | None]:
    """Order the mode, and wait until the bookie follows it; returns the ordered and the registered mode."""
    from ..cluster_client import cluster  # noqa: PLC0415

    expected = BookieMode.READ_ONLY if read_only else BookieMode.WRITABLE
    async with cluster(metadata) as client:
        membership, clock = client.world.membership, client.world.clock
        wanted = await _switched(client, bookie_id, RequestedMode.READ_ONLY, on=read_only)
        deadline = clock.monotonic() + _REGISTERED_SECONDS
        polls = Backoff(clock, client.world.rng, first_s=_REGISTERED_POLL_SECONDS, deadline=deadline)
        while True:
            info = (await membership.bookies()).get(bookie_id)
            if info is None or info.mode is expected or not await polls.pause():
                return wanted, None if info is None else info.mode


async def _switch(metadata: str, bookie_id: str, mode: RequestedMode, *, on: bool) -> RequestedMode:
    # Imported here so that ``bookie run`` loads neither a client nor the repair; below likewise.
    from ..cluster_client import cluster  # noqa: PLC0415

    async with cluster(metadata) as client:
        return await _switched(client, bookie_id, mode, on=on)


async def _switched(client: Client, bookie_id: str, mode: RequestedMode, *, on: bool) -> RequestedMode:
    from tallybook.repair.status.drain import switch_mode  # noqa: PLC0415

    world = client.world
    rng = world.rng.fork("mode")
    return await switch_mode(world.store, world.membership, world.clock, rng, bookie_id, mode, on=on)


async def _drain(metadata: str, bookie_id: str, timeout_s: float | None, *, force: bool) -> ResultFields:
    from tallybook.repair.status.drain import check_can_end, count_references  # noqa: PLC0415
    from tallybook.repair.status.drain_reasons import why_still_referenced  # noqa: PLC0415

    from ..cluster_client import cluster  # noqa: PLC0415

    async with cluster(metadata) as client:
        world, clock = client.world, client.world.clock
        if not force:
            await check_can_end(world.store, world.membership, bookie_id)
        await _switched(client, bookie_id, RequestedMode.DRAINING, on=True)
        deadline = clock.monotonic() + (timeout_s or 0)

        async def reasons(ledger_ids: Sequence[int]) -> dict[int, str]:
            left_s = math.inf if timeout_s is None else max(deadline - clock.monotonic(), 0)
            within_s = min(_WHY_WITHIN_SECONDS, left_s)
            return await why_still_referenced(world, bookie_id, ledger_ids, within_s=within_s)

        found = await count_references(world.store, world.membership, bookie_id)
        why = await reasons(found.first_ids)
        why_again_at = clock.monotonic() + _WHY_SECONDS
        progress = Progress(
            f"draining {bookie_id}",
            clock,
            unit="ledgers left",
            plain=lambda: f"draining {bookie_id}: {how_far(_as_record(found, why))}",
        )
        async with show_progress(progress, clock, lambda: (found.ledgers, 0)):
            while timeout_s is not None and not found.may_be_removed:
                if clock.monotonic() >= deadline:
                    raise RequestTimeout(f"after {timeout_s:.0f} s {how_far(_as_record(found, why))}")
                await clock.sleep(jittered(world.rng, _POLL_SECONDS))
                with suppress(TimeoutError):
                    async with asyncio.timeout(deadline - clock.monotonic()):
                        found = await count_references(world.store, world.membership, bookie_id)
                if why_again_at <= clock.monotonic() < deadline:
                    why = await reasons(found.first_ids)
                    why_again_at = clock.monotonic() + _WHY_SECONDS
    return _as_record(found, why)


def _as_record(found: BookieReferences, why: Mapping[int, str]) -> ResultFields:
    return {
        "bookie_id": found.bookie_id,
        "wanted": RequestedMode.DRAINING.value,
        "ledgers": found.ledgers,
        "growing": found.growing,
        "first_ledger_ids": list(found.first_ids),
        "why": {str(each): why[each] for each in found.first_ids if each in why},
        "complete": found.complete,
        "still_chosen": found.chosen,
        "may_be_switched_off": found.may_be_removed,
    }


def _show(record: ResultFields, text: str, as_json: bool) -> None:
    if as_json:
        print_json(record)
    else:
        print(text)
