"""The console of a cluster of real bookies: answers and effects of its endpoints, and access to them."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import urllib.request
from datetime import timedelta
from typing import Any

import pytest

from tallybook.client.client import Client
from tallybook.core.access import Permission, Role
from tallybook.core.errors import InvalidConfig, MetadataUnavailable, NewerFormat
from tallybook.core.settings import ConsoleSettings
from tallybook.gateway.console import cluster_view
from tallybook.gateway.console import diagnosis as diagnosing
from tallybook.gateway.console.routes import endpoints
from tallybook.gateway.console.server import pages, serving
from tallybook.metadata.stream_use import head_record
from tallybook.repair import service, tasks
from tallybook.repair.diagnosis.causes import Cause
from tallybook.runtime.security.authority import Subject
from tallybook.stream import Start, StreamStore

from .consoles import DEADLINE_SECONDS, Console, console, eventually


async def test_bookies_are_shown_with_what_they_hold_and_their_numbers(cluster):
    async with console(cluster.metadata) as ask:
        shown = (await eventually(ask, "bookies", lambda told: told["bookies"]))["bookies"]
        assert [each["bookie_id"] for each in shown] == ["bookie-1", "bookie-2", "bookie-3"]
        one = await eventually(ask, "bookies/bookie-1", lambda told: None not in (told["numbers"], told["named_by"]))
        assert one["mode"] == "writable"
        assert 0 < one["disk_used"] < 1
        assert one["numbers"]["memory_bytes"] > 0
        assert one["numbers"]["commits"] >= 0
        assert set(one["times"]) == {"adds", "reads", "commits"}
        assert one["named_by"] >= one["growing"] >= 0
        assert (one["still_chosen"], one["may_be_switched_off"]) == (True, False)
        assert one["ledgers_age_ms"] >= 0
        assert (await ask("GET", "/api/v1/bookies/bookie-9"))[0] == 404


async def test_a_bookie_is_switched_to_read_only_and_to_drain_and_back(cli, tmp_path):
    with cli.up(tmp_path / "cluster", bookies=1) as up:
        async with console(up.metadata) as ask:
            for mode, wanted in (
                ("read-only", "read_only"), ("writable", "normal"), ("drain", "draining"), ("undrain", "normal"),
            ):  # fmt: skip
                status, told = await ask("POST", f"/api/v1/bookies/bookie-1/{mode}", {})
                assert (status, told) == (200, {"bookie_id": "bookie-1", "wanted": wanted})
            assert (await ask("POST", "/api/v1/bookies/bookie-1/explode", {}))[0] == 400
            assert (await ask("POST", "/api/v1/bookies/bookie-7/drain", {}))[0] == 404
            assert (await ask("POST", "/api/v1/bookies/bookie-1/read-only", {}))[0] == 200
            status, told = await ask("POST", "/api/v1/bookies/bookie-1/drain", {})
            assert (status, told["error"]["type"]) == (409, "CallerError"), "one thing at a time is wanted of it"
        assert up.stop() == 0


async def test_a_drain_that_cannot_end_is_refused_unless_it_is_forced(cli, tmp_path):
    with cli.up(tmp_path / "cluster", "--no-repair", bookies=3) as up:
        async with console(up.metadata) as ask:
            writer = await ask.client.create_ledger()
            await writer.append(b"x")
            await writer.close()
            status, told = await ask("POST", "/api/v1/bookies/bookie-1/drain", {})
            assert (status, told["error"]["type"]) == (409, "CallerError")
            assert "bookie-1 cannot be drained: 1 ledger names it" in told["error"]["message"]
            assert (await ask("POST", "/api/v1/bookies/bookie-1/drain", {"force": "yes"}))[0] == 400
            status, told = await ask("POST", "/api/v1/bookies/bookie-1/drain", {"force": True})
            assert (status, told["wanted"]) == (200, "draining")
        assert up.stop() == 0


async def test_ledgers_are_listed_in_pages_shown_traced_and_deleted(cluster):
    async with console(cluster.metadata) as ask:
        writers = [await ask.client.create_ledger(password=word) for word in (b"", b"secret")]
        for writer in writers:
            await writer.append(b"x" * 100)
            await writer.close()
        plain, locked = (writer.id for writer in writers)
        seen, after = [], None
        while True:
            page = await ask.get("ledgers?limit=1" + ("" if after is None else f"&after={after}"))
            seen += [each["ledger_id"] for each in page["ledgers"]]
            after = page["next"]
            if after is None:
                break
        assert {plain, locked} <= set(seen)
        assert seen == sorted(set(seen))
        found = await ask.get(f"ledgers/{locked}")
        assert (found["entries"], found["bytes"], found["password"]) == (1, 100, True)
        assert "secret" not in json.dumps(found)
        traced = await ask.get(f"ledgers/{plain}/entries/0/trace")
        assert (traced["good"], traced["copies_intact"]) == (True, 3)
        assert (await ask("GET", f"/api/v1/ledgers/{plain}/entries/1/trace"))[0] == 404
        status, told = await ask("DELETE", f"/api/v1/ledgers/{locked}", {})
        assert (status, told["error"]["type"]) == (409, "Unauthorized")
        assert (await ask("DELETE", f"/api/v1/ledgers/{locked}", {"password": 7}))[0] == 400
        for ledger_id, body in ((locked, {"password": "secret"}), (plain, {})):
            assert await ask("DELETE", f"/api/v1/ledgers/{ledger_id}", body) == (200, {"deleted": ledger_id})
            assert (await ask("GET", f"/api/v1/ledgers/{ledger_id}"))[0] == 404


async def test_ledgers_are_listed_in_an_order_with_a_filter_and_counted(cluster):
    async with console(cluster.metadata) as ask:
        sizes = {}
        for at, size in enumerate((10, 1_000, 100)):
            writer = await ask.client.create_ledger(custom={"name": b"Sorted-%d" % at})
            await writer.append(bytes(size))
            await writer.close()
            sizes[writer.id] = size
        async with await ask.client.create_ledger(custom={"name": b"sorted-open"}) as growing:
            ids = list(sizes)
            newest = await eventually(ask, "ledgers?sort=newest&search=SORTED", lambda page: page["matches"] == 4)
            assert [each["ledger_id"] for each in newest["ledgers"]] == [growing.id, *reversed(ids)]
            assert newest["total"] >= newest["indexed"] >= 4
            page = await ask.get("ledgers?sort=largest&state=closed&search=sorted&limit=2")
            assert [each["bytes"] for each in page["ledgers"]] == [1_000, 100]
            rest = await ask.get(f"ledgers?sort=largest&state=closed&search=sorted&limit=2&offset={page['next']}")
            assert ([each["bytes"] for each in rest["ledgers"]], rest["next"]) == ([10], None)
            by_id = await ask.get(f"ledgers?sort=oldest&search={ids[0]}")
            assert ids[0] in [each["ledger_id"] for each in by_id["ledgers"]]
        for wrong in ("sort=sideways", "sort=newest&state=lost", "sort=newest&after=1", "search=x"):
            assert (await ask("GET", f"/api/v1/ledgers?{wrong}"))[0] == 400
        for ledger_id in (*ids, growing.id):
            await ask.client.delete_ledger(ledger_id)


async def test_the_repair_is_paused_and_resumed_on_request(cluster):
    async with console(cluster.metadata) as ask:
        status, told = await ask("POST", "/api/v1/repair/pause", {})
        assert status == 200
        assert (await ask.get("repair"))["paused_since_ms"] == told["paused_since_ms"] > 0
        assert await ask("POST", "/api/v1/repair/resume", {}) == (200, {"paused_since_ms": None})
        assert (await ask("POST", "/api/v1/repair/explode", {}))[0] == 400


async def test_the_segments_of_a_stream_are_listed_in_pages_with_their_ledgers(cluster):
    async with console(cluster.metadata) as ask, StreamStore(ask.client) as streams:
        await streams.create("console/rolling")
        for number in range(3):
            async with await streams.writer("console/rolling") as writer:
                await writer.append(b"%d" % number)
        path = "streams/default/console%2Frolling/segments"
        (first,) = (page := await ask.get(f"{path}?limit=1"))["segments"]
        assert (first["segment"], first["next_sequence"], first["bytes"] > 0) == (1, 1, True)
        rest = await ask.get(f"{path}?after={page['next']}")
        assert [each["next_sequence"] for each in rest["segments"]] == [2, 3]
        assert rest["next"] is None
        for each in (first, *rest["segments"]):
            assert (await ask.get(f"ledgers/{each['ledger_id']}"))["state"] == "closed"
        by_id = f"/api/v1/ledgers/{first['ledger_id']}"
        status, told = await ask("DELETE", by_id, {})
        assert (status, told["error"]["type"]) == (409, "LedgerInUse")
        assert (await ask("DELETE", by_id, {"force": "yes"}))[0] == 400
        assert (await ask("DELETE", by_id, {"force": True}))[0] == 200
        await streams.delete("console/rolling")
        assert (await ask("GET", f"/api/v1/{path}"))[0] == 404


async def test_an_open_ledger_is_shown_up_to_what_readers_see_and_stays_open(cluster):
    async with console(cluster.metadata) as ask:
        writer = await ask.client.create_ledger()
        await writer.append(b"one")
        await writer.append(b"two")
        found = await ask.get(f"ledgers/{writer.id}")
        assert (found["state"], found["entries"]) == ("open", None)
        assert found["last_add_confirmed"] in (-1, 0, 1)
        await writer.append(b"three")
        await writer.close()


async def test_streams_are_shown_with_the_lag_of_their_subscriptions(cluster):
    async with console(cluster.metadata) as ask:
        name = "console/<b>&été"
        async with StreamStore(ask.client) as streams:
            await streams.create(name)
            async with await streams.writer(name) as writer:
                for number in range(5):
                    await writer.append(b"%d" % number)
            async with await streams.subscribe(name, "reader") as subscription:
                async for record in subscription:
                    await subscription.advance(record.position)
                    if record.sequence == 1:
                        break
            path = "console%2F%3Cb%3E%26%C3%A9t%C3%A9"
            listed = await ask.get("streams?prefix=console/")
            assert [each["name"] for each in listed["streams"]] == [name]
            found = await ask.get(f"streams/default/{path}")
            assert found["next_sequence"] == 5
            (reader,) = found["subscriptions"]
            assert (reader["subscription"], reader["lag_records"], reader["why"]) == ("reader", 3, "")
            assert reader["lag_bytes"] > 3
            assert reader["lag_s"] >= 0
            searched = await ask.get("streams?search=%26%C3%89T%C3%A9")
            assert [each["name"] for each in searched["streams"]] == [name]
            assert (await ask.get("streams?search=nothing-like-it"))["streams"] == []
            assert "default" in (await ask.get("namespaces"))["namespaces"]
            await streams.delete(name)
        assert (await ask("GET", f"/api/v1/streams/default/{path}"))[0] == 404
        assert (await ask("GET", "/api/v1/streams?namespace=a%2Fb"))[0] == 400
        assert (await ask("GET", "/api/v1/streams?after=..%2F.."))[0] == 400


async def test_the_page_gets_all_that_it_shows_at_first_in_one_answer(cluster):
    async with console(cluster.metadata) as ask:
        found = await ask.get("overview")
        assert {"at_ms", "bookies", "ledgers", "copies", "archive", "offload", "problems", "diagnosis"} <= set(found)
        assert (found["diagnosis"]["sentence"], found["diagnosis"]["findings"]) == (diagnosing.NOT_YET_KNOWN, [])
        known = await eventually(ask, "overview", lambda told: told["bookies"])
        assert 0 <= known["age_ms"] < 60_000
        for path in ("under-replicated", "auditor", "repair", "offload", "config", "diagnosis"):
            await ask.get(path)


async def test_the_diagnosis_shows_changes_between_two_polls(cluster, monkeypatch):
    monkeypatch.setattr(diagnosing, "MIN_INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(cluster_view, "VERDICT_SECONDS", DEADLINE_SECONDS)
    async with console(cluster.metadata) as ask:
        assert (await ask.get("overview"))["diagnosis"]["verdict"] is None
        told = await ask.get("diagnosis")
        assert told["verdict"] in {cause.value for cause in Cause}, "who asks for it alone waits for one"
        # On a busy machine a bookie may take longer than a poll waits.
        told = await eventually(ask, "diagnosis", lambda told: not told["silent"])
    assert {"bookie-1", "bookie-2", "bookie-3"} <= set(told["processes"])
    assert told["findings"][0]["evidence"][0]["told"]
    assert told["age_s"] < 10


async def test_an_answer_says_how_old_it_is_and_why_nothing_newer_is_known(cluster, monkeypatch):
    """The metadata store goes away: what was seen stays, and grows old."""
    async with console(cluster.metadata) as ask:
        assert (await eventually(ask, "overview", lambda told: told["bookies"]))["why"] == ""

        async def away(*_: object) -> None:
            raise MetadataUnavailable("nobody answers")

        monkeypatch.setattr(cluster_view, "survey", away)
        found = await eventually(ask, "overview", lambda told: told["why"])
        assert found["why"] == "nobody answers"
        assert [each["bookie_id"] for each in found["bookies"]] == ["bookie-1", "bookie-2", "bookie-3"]
        older = await eventually(ask, "overview", lambda told: told["age_ms"] >= found["age_ms"] + 200)
        assert older["at_ms"] == found["at_ms"]


async def test_no_request_waits_for_the_ledger_count(cluster, monkeypatch):
    counting = asyncio.Event()

    async def for_ever(*_: object) -> None:
        counting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(cluster_view, "census", for_ever)
    async with console(cluster.metadata) as ask:
        found = await eventually(ask, "overview", lambda told: told["bookies"])
        assert counting.is_set()
        assert (found["ledgers"], found["ledgers_age_ms"]) == (None, None)
        assert len(found["bookies"]) == 3
        monkeypatch.setattr(cluster_view, "FIRST_WAIT_SECONDS", 0.1)
        one = await ask.get("bookies/bookie-1")
        assert (one["named_by"], one["may_be_switched_off"]) == (None, None)
        assert (await ask("GET", "/api/v1/bookies/bookie-9"))[0] == 503, "whether ledgers name it is not known yet"


async def test_the_auditor_is_shown_only_while_there_is_one(cli, tmp_path):
    with cli.up(tmp_path / "cluster", "--no-repair", bookies=1) as up:
        async with console(up.metadata) as ask:
            await _an_auditor_comes_and_goes(ask)


async def _an_auditor_comes_and_goes(ask: Console) -> None:
    store = ask.client.world.store
    path = service.AUDITOR_RECORD

    async def write(holder: str | None) -> None:
        found = await store.read_record(path)
        value = {"format": 1, "holder": holder, "lease_ms": 2_500, "by": "x", "write": 1, "who": "repair-1:8080"}
        await store.write_record(path, json.dumps(value).encode(), None if found is None else found.version)

    async def becomes(state: str) -> dict[str, Any]:
        told = await eventually(ask, "auditor", lambda told: told["auditor"] and told["auditor"]["state"] == state)
        return told["auditor"]

    await becomes("nobody")
    await write("some-uuid")
    assert (await becomes("running"))["who"] == "repair-1:8080"
    assert (await becomes("silent"))["silent_s"] >= 2.5, "it has not written for a lease"
    await write(None)
    await becomes("nobody")


async def test_an_audit_is_run_on_demand_beside_the_request_and_one_at_a_time(cluster):
    async with console(cluster.metadata) as ask:
        status, told = await ask("POST", "/api/v1/auditor/run", {})
        assert (status, told["ended_ms"]) == (200, None)
        found = (await eventually(ask, "auditor", lambda told: told["round"]["ended_ms"] is not None))["round"]
        assert found["why"] == ""
        assert found["found"]["ledgers"] >= 0
        assert found["found"]["tasks_handed_out"] == 0


async def test_what_a_newer_version_wrote_is_a_row_of_its_own_beside_all_others(cluster, monkeypatch):
    async with console(cluster.metadata) as ask:
        await (await ask.client.create_ledger()).close()
        writer = await ask.client.create_ledger()
        await writer.close()
        world, read = ask.client.world, ask.client.world.store.read_ledger

        async def newer(ledger_id: int, **_: Any) -> Any:
            if ledger_id == writer.id:
                raise NewerFormat("format 9")
            return await read(ledger_id)

        monkeypatch.setattr(world.store, "read_ledger", newer)
        page = await ask.get(f"ledgers?after={writer.id - 1}&limit=1")
        assert page["ledgers"] == [{"ledger_id": writer.id, "state": "unreadable", "why": "format 9"}]
        monkeypatch.setattr(world.store, "read_ledger", read)
        for name in ("0-00", "0-01", "1-00"):
            await world.store.write_record(f"{tasks.PREFIX}{name}", b'{"format": 9}', None)
        first = await ask.get("repair?limit=2")
        assert [(each["task"], bool(each["unreadable"])) for each in first["tasks"]] == [
            ("0-00", True),
            ("0-01", True),
        ]
        rest = await ask.get(f"repair?after={first['next']}")
        assert (rest["tasks"][0]["task"], rest["next"]) == ("1-00", None), "others of the cluster's own may follow"
        short = await ask.get("under-replicated")
        assert [each["task"] for each in short["tasks"]] == ["0-00", "0-01"], "a periodic check lacks nothing"
        assert (await ask("GET", "/api/v1/repair?after=..%2Fx"))[0] == 400
        for name in ("0-00", "0-01", "1-00"):
            found = await world.store.read_record(f"{tasks.PREFIX}{name}")
            await world.store.delete_record(f"{tasks.PREFIX}{name}", found.version)
        async with StreamStore(ask.client) as streams:
            made = await streams.create("console/newer")
            head = head_record(made.stream_id)
            found = await world.store.read_record(head)
            await world.store.write_record(head, b'{"format": 99}', found.version)
            (row,) = (await ask.get("streams?prefix=console/newer"))["streams"]
            assert row["name"] == "console/newer"
            assert "99" in row["unreadable"]
            restored = await world.store.read_record(head)
            await world.store.write_record(head, found.value, restored.version)
            await streams.delete("console/newer")


async def test_lists_are_cut_into_pages_and_say_where_the_next_one_begins(cluster):
    async with console(cluster.metadata) as ask, StreamStore(ask.client) as streams:
        for name in ("a1", "a2", "a3"):
            await StreamStore(ask.client, namespace=f"console-{name}").create_namespace()
        page = await ask.get("namespaces?after=console-&limit=2")
        assert page["namespaces"] == ["console-a1", "console-a2"]
        assert page["total"] >= 4
        rest = await ask.get(f"namespaces?after={page['next']}&limit=1")
        assert rest["namespaces"] == ["console-a3"]
        await streams.create("console/pages")
        for name in ("r1", "r2", "r3"):
            await streams.subscribe("console/pages", name)
        first = await ask.get("streams/default/console%2Fpages?limit=2")
        assert [each["subscription"] for each in first["subscriptions"]] == ["r1", "r2"]
        last = await ask.get(f"streams/default/console%2Fpages?after={first['next']}")
        assert ([each["subscription"] for each in last["subscriptions"]], last["next"]) == (["r3"], None)
        await streams.delete("console/pages")
        for name in ("a1", "a2", "a3"):
            await StreamStore(ask.client, namespace=f"console-{name}").delete_namespace()


async def test_a_list_of_streams_says_where_open_ones_end_and_the_largest_lag(cluster):
    async with console(cluster.metadata) as ask, StreamStore(ask.client) as streams:
        await streams.create("console/open")
        async with await streams.writer("console/open") as writer:
            for number in range(5):
                await writer.append(b"%d" % number)
            for name, start in (("slow", Start.earliest()), ("fast", Start.latest())):
                await streams.subscribe("console/open", name, start=start)
            (row,) = (await ask.get("streams?prefix=console/open"))["streams"]
            assert row["next_sequence"] == 0, "its one segment has not ended"
            assert row["end_sequence"] in (4, 5)
            assert (row["largest_lag_records"], row["subscriptions"]) == (row["end_sequence"], 2)
        await streams.delete("console/open")


def test_every_endpoint_needs_a_permission_and_every_change_is_audited():
    table = endpoints(*(type("Any", (), {"__getattr__": lambda self, name: name})() for _ in range(4)))
    for endpoint in table:
        changes = endpoint.method != "GET"
        assert bool(endpoint.action) == changes, endpoint
        assert endpoint.permission is (
            Permission.ADMINISTER if changes or endpoint.path.endswith("/config") else Permission.READ
        ), endpoint


async def test_with_security_each_endpoint_serves_only_authorized_callers(cluster, authority, tmp_path):
    place = tmp_path / "console"
    rules = tmp_path / "authority/access.toml"
    rules.write_text(
        rules.read_text()
        + '\n[[principal]]\nname = "looks"\nroles = ["reader"]\ntokens = ["looks"]\n'
        + '\n[[principal]]\nname = "root2"\nroles = ["admin"]\ntokens = ["root2"]\n'
        + '\n[[principal]]\nname = "few"\nroles = ["writer"]\ntokens = ["few"]\nstreams = ["few/"]\n'
    )
    authority.issue(place, Subject(Role.BOOKIE, "console", ("127.0.0.1",)), days=1)

    def token(subject: str) -> dict[str, str]:
        return {"authorization": f"Bearer {authority.token(subject, lifetime=timedelta(hours=1))}"}

    context = ssl.create_default_context(cafile=tmp_path / "authority/ca.crt")
    table = endpoints(*(type("Any", (), {"__getattr__": lambda self, name: name})() for _ in range(4)))
    places = {"{bookie}": "none", "{mode}": "drain", "{ledger}": "999999", "{entry}": "0", "{namespace}": "default",
              "{stream}": "none", "{switch}": "resume"}  # fmt: skip
    # The client of the cluster has no certificate here: the bookies that are shared have no security.
    settings = ConsoleSettings(metadata=cluster.metadata, listen="127.0.0.1:0", security=str(place))
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Client(cluster.metadata) as client,
        serving(client, settings) as address,
    ):
        ask = Console(address, client, context)
        for endpoint in table:
            path = endpoint.path
            for name, value in places.items():
                path = path.replace(name, value)
            assert (await ask(endpoint.method, path))[0] == 401, path
            assert (await ask(endpoint.method, path, **token("few")))[0] == 403, path
            assert (await ask(endpoint.method, path, **token("nobody")))[0] == 403, path
            looks = (await ask(endpoint.method, path, **token("looks")))[0]
            assert (looks == 403) == (endpoint.permission is Permission.ADMINISTER), path
            assert (await ask(endpoint.method, path, **token("root2")))[0] in {200, 404}, path
        for path in ("/healthz", "/", *pages()):
            assert (await ask("GET", path))[0] == 200, "what tells nothing of the cluster is for everybody"
        assert (await ask("GET", "/metrics"))[0] == 401
        status, numbers = await ask("GET", "/metrics", **token("looks"))
        assert (status, b"\ntallybook_client_connects_total " in numbers) == (200, True)
        assert b"\ntallybook_metadata_read_seconds_count " in numbers


async def test_without_security_a_console_listens_on_loopback_only(cluster):
    async with Client(cluster.metadata) as client:
        for listen in ("0.0.0.0:0", "[::]:0", "console.example:0"):
            with pytest.raises(InvalidConfig, match="listen on loopback"):
                async with serving(client, ConsoleSettings(metadata=cluster.metadata, listen=listen)):
                    pass


def test_the_command_says_where_it_is_and_stops_cleanly(cli, cluster, tmp_path):
    with (tmp_path / "err").open("wb") as errors:
        process = cli.start(
            "console", "run", "--json", "--metadata", cluster.metadata, "--listen", "127.0.0.1:0",
            stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    try:
        told = json.loads(process.stdout.readline())
        assert told["ready"].startswith("http://127.0.0.1:")
        process.terminate()
        assert process.wait(cli.patience) == 0, (tmp_path / "err").read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_up_runs_a_console_says_where_and_serves_on_when_it_dies(cli, tmp_path):
    data = tmp_path / "data"
    with (tmp_path / "err").open("wb") as errors:
        process = cli.start(
            "up", "--data", data, "--bookies", 1, "--no-offload", "--no-repair", "--no-gateway", "--json", *cli.small,
            stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    try:
        told = json.loads(process.stdout.readline())
        with urllib.request.urlopen(told["console"]["url"] + "api/v1/bookies", timeout=cli.patience) as answer:
            assert [each["bookie_id"] for each in json.load(answer)["bookies"]] == ["bookie-1"]
        os.kill(told["console"]["pid"], signal.SIGKILL)
        cli.wait_until(lambda: "the console" in (tmp_path / "err").read_text(), "its end was told")
        assert cli.alive(told["bookies"][0]["pid"])
        process.terminate()
        process.wait(cli.patience)
        assert (data / "console.log").exists()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_a_bookie_reports_its_state_and_collects_garbage_on_request(cluster):
    ask = Console(f"127.0.0.1:{cluster.run_file(1)['ports']['http']}", None)
    state = await ask.get("bookie/state")
    assert (state["bookie_id"], state["not_ready"], state["read_only"]) == ("bookie-1", None, False)
    assert (await ask.get("bookie/config"))["journal"]["segment_bytes"] == 8 << 20
    status, told = await ask("POST", "/api/v1/bookie/gc", {})
    assert (status, told["requested"]) == (200, True)
    await eventually(ask, "bookie/gc", lambda now: now["collector_rounds"] > told["collector_rounds"])
    for name, suspended in (("suspend", True), ("resume", False)):
        status, told = await ask("POST", f"/api/v1/bookie/gc/{name}_compaction", {})
        assert (status, told["compaction_suspended"]) == (200, suspended)
        assert (await ask.get("bookie/gc"))["compaction_suspended"] is suspended
    assert (await ask("POST", "/api/v1/bookie/gc", {}, origin="http://evil.example"))[0] == 403
    assert (await ask("GET", "/api/v1/bookie/config", host="evil.example"))[0] == 403
