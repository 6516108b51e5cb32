"""The blocking API has exactly the calls of its asyncio twin: names, arguments and defaults."""

import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tallybook import client, stream
from tallybook.client import sync
from tallybook.stream import sync as stream_sync

PAIRS = [
    (client.Client, sync.Client),
    (client.LedgerWriter, sync.LedgerWriter),
    (client.LedgerReader, sync.LedgerReader),
    (client.ChosenIdsWriter, sync.ChosenIdsWriter),
    (stream.StreamStore, stream_sync.StreamStore),
    (stream.StreamWriter, stream_sync.StreamWriter),
    (stream.StreamReader, stream_sync.StreamReader),
    (stream.SubscriptionReader, stream_sync.SubscriptionReader),
]
# What the asyncio side has for what is built upon it on the same loop; threads must not come near.
FOR_THE_LOOP = {
    client.Client: {"authorize", "budget", "budget_type", "lifetime", "recover_accepting_loss", "security", "world"},
    client.LedgerWriter: {
        "append_admitted",
        "append_held",
        "limits_known",
        "take_budget",
        "wait_for_limits",
        "when_limits_known",
    },
    stream.StreamStore: {"bound_ids", "count_in", "info_by_id", "metadata_store", "sweep_lags", "writer_by_id"},
    stream.StreamWriter: {
        "append_admitted",
        "check_age",
        "check_quota",
        "end_at_refusal",
        "look",
        "send",
        "send_many",
        "take_budget",
    },
    stream.StreamReader: {"abandon", "aclose", "begin", "bookmark", "go_back"},
    stream.SubscriptionReader: {"reader"},
}
# Arguments of the constructor: shared by the stores of a gateway.
SHARED_BY_STORES = {"ids", "load"}
# What only threads need: for what is built upon the blocking client.
FOR_THREADS = {
    sync.Client: {
        "add_close_callback",
        "asyncio_client",
        "carry",
        "put_down",
        "remove_close_callback",
        "standing",
    },
}
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gen-blocking"
ITERATING = {
    "read", "read_batches", "read_sealed", "read_unconfirmed", "tail", "tail_batches", "list_ledgers",
    "batches", "list", "namespaces", "segments", "subscriptions",
}  # fmt: skip


def surface(kind: type) -> dict[str, object]:
    """The public interface of a class: parameters of its methods, and its properties."""
    found: dict[str, object] = {}
    for name, member in inspect.getmembers(kind):
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            found[name] = "property"
        elif callable(member):
            parameters = inspect.signature(member).parameters.values()
            found[name] = [(found.name, found.kind, found.default, found.annotation) for found in parameters]
        else:
            found[name] = type(member)
    return found


@pytest.mark.parametrize(("of_loop", "blocking"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_sides_have_the_same_calls_with_the_same_arguments(of_loop, blocking):
    wanted = {name: how for name, how in surface(of_loop).items() if name not in FOR_THE_LOOP.get(of_loop, set())}
    found = {name: how for name, how in surface(blocking).items() if name not in FOR_THREADS.get(blocking, set())}
    assert found == wanted


def test_nothing_is_left_out_that_is_not_there():
    for kind, names in (FOR_THE_LOOP | FOR_THREADS).items():
        assert names <= set(dir(kind))


@pytest.mark.parametrize(("of_loop", "blocking"), [PAIRS[0], PAIRS[4]], ids=lambda kind: kind.__name__)
def test_a_client_and_a_store_are_made_in_the_same_way(of_loop, blocking):
    made = [inspect.signature(kind).parameters.values() for kind in (of_loop, blocking)]
    assert [str(each) for each in made[0] if each.name not in SHARED_BY_STORES] == [*map(str, made[1])]


@pytest.mark.parametrize(("of_loop", "blocking"), PAIRS, ids=lambda kind: kind.__name__)
def test_what_is_entered_or_iterated_over_is_so_on_both_sides(of_loop, blocking):
    assert hasattr(blocking, "__enter__") == hasattr(of_loop, "__aenter__")
    assert hasattr(blocking, "__iter__") == hasattr(of_loop, "__aiter__")


@pytest.mark.parametrize(("of_loop", "blocking"), PAIRS, ids=lambda kind: kind.__name__)
def test_no_call_of_the_blocking_side_has_to_be_awaited(of_loop, blocking):
    for name, member in inspect.getmembers(blocking, inspect.isfunction):
        if name.startswith("_"):
            continue
        assert not inspect.iscoroutinefunction(member), name
        returned = inspect.signature(member).return_annotation
        assert returned.startswith(("Generator[", "LoopIterator[", "ItemIterator[")) == (name in ITERATING), name


def test_both_modules_offer_the_same_names():
    assert set(client.__all__) - set(sync.__all__) == {"ClientWorld"}
    assert set(sync.__all__) <= set(client.__all__)
    assert set(stream.__all__) - set(stream_sync.__all__) == {
        "keep_for_ever",
        "run_janitor",
    }, "they run on the loop; StreamStore.keep"
    assert set(stream_sync.__all__) <= set(stream.__all__)


def test_the_blocking_handles_are_generated_from_the_asyncio_handles_of_today():
    found = subprocess.run([sys.executable, SCRIPT, "--check"], check=False, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


def test_the_former_name_of_check_age_still_works_and_warns():
    checks = []
    with pytest.warns(DeprecationWarning, match="check_age"):
        stream.StreamWriter.look(SimpleNamespace(check_age=lambda: checks.append("checked")))
    assert checks == ["checked"]


@pytest.mark.parametrize(
    ("former", "now", "arguments"),
    [
        ("standing", "asyncio_client", ()),
        ("carry", "add_close_callback", ("end",)),
        ("put_down", "remove_close_callback", ("end",)),
    ],
)
def test_the_former_names_of_a_blocking_client_still_work_and_warn(former, now, arguments):
    calls = []
    with pytest.warns(DeprecationWarning, match=now):
        getattr(sync.Client, former)(SimpleNamespace(**{now: lambda *given: calls.append(given)}), *arguments)
    assert calls == [arguments]


def test_the_former_name_of_run_janitor_still_works_and_warns():
    arguments = [object()] * 4
    with pytest.warns(DeprecationWarning, match="run_janitor"):
        former = stream.keep_for_ever(*arguments)
    assert former.__name__ == stream.run_janitor.__name__
    former.close()
