"""The page of the console in a real browser, with real bookies: views, actions, and hostile names.

If TALLYBOOK_SCREENSHOTS names a folder, screenshots of the views are written there.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tallybook.client.client import Client
from tallybook.core.access import Role
from tallybook.runtime.security.authority import Subject
from tallybook.stream import StreamStore

from .conftest import CHROMIUM, SCREENSHOTS, TALLYBOOK, environment
from .consoles import console_process as console
from .consoles import rows

BAD_NAME = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"
STREAM = "shop/<b>orders</b>"

pytestmark = [pytest.mark.browser, pytest.mark.skipif(not CHROMIUM, reason="make console-test gives it a browser")]


@pytest.fixture(scope="module")
def filled(cluster) -> tuple[str, int]:
    """The shared cluster with a ledger and a stream of bad names in it; the id of the ledger."""

    async def fill() -> int:
        async with Client(cluster.metadata) as client, StreamStore(client) as streams:
            async with await client.create_ledger(custom={"name": BAD_NAME.encode()}) as writer:
                for number in range(20):
                    await writer.append(b"%d" % number)
            if not await streams.exists(STREAM):
                await streams.create(STREAM)
                async with await streams.writer(STREAM) as stream:
                    for number in range(7):
                        await stream.append(b"%d" % number)
                async with await streams.subscribe(STREAM, "<i>mail"):
                    pass
            return writer.id

    return cluster.metadata, asyncio.run(fill())


@pytest.fixture(scope="module")
def chromium(filled, chromium):
    """It comes after ``filled``: from then on this thread has a loop of its own that runs."""
    return chromium


def test_the_way_from_a_ledger_to_the_copies_of_an_entry_is_one_of_links(cli, filled, browse, tmp_path):
    metadata, ledger = filled
    with console(cli, metadata, tmp_path / "err") as (url, _):
        page = browse(url)
        page.get_by_role("link", name="Ledgers", exact=True).click()
        page.get_by_role("link", name=str(ledger), exact=True).click()
        page.get_by_role("heading", name=f"Ledger {ledger}").wait_for()
        rows(page, "Fragments").get_by_role("link", name="0", exact=True).click()
        page.get_by_role("heading", name="Entry 0").wait_for()
        assert rows(page, "Copies").count() == 3
        assert page.locator("td .pill.good", has_text="intact").count() == 3
        page.get_by_role("link", name="bookie-2").click()
        page.get_by_role("heading", name="bookie-2").wait_for()


def test_any_name_is_shown_as_text_and_nothing_is_loaded_from_elsewhere(cli, filled, browse, tmp_path):
    metadata, ledger = filled
    with console(cli, metadata, tmp_path / "err") as (url, _):
        page = browse(url)
        page.goto(f"{url}#/ledgers/{ledger}")
        page.get_by_text(BAD_NAME, exact=True).wait_for()
        page.goto(f"{url}#/ledgers")
        page.get_by_text(BAD_NAME, exact=True).first.wait_for()
        page.goto(f"{url}#/streams")
        page.get_by_role("link", name=STREAM).click()
        page.get_by_role("heading", name=STREAM).wait_for()
        page.get_by_text("<i>mail", exact=True).wait_for()
        page.get_by_text("7 records").wait_for()
        assert page.evaluate("window.pwned") is None
        assert page.locator("main img, main script, main b, main i").count() == 0
        assert all(each.startswith(url) for each in page.asked), page.asked
        assert not page.complaints


def test_the_way_from_a_stream_leads_to_the_copies_of_its_records(cli, filled, browse, tmp_path):
    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(f"{url}#/streams")
        page.get_by_role("link", name=STREAM).click()
        first = rows(page, "Segments").first
        first.get_by_text("sealed", exact=True).wait_for()
        ledger = first.get_by_role("link").text_content()
        first.get_by_role("link").click()
        page.get_by_role("heading", name=f"Ledger {ledger}").wait_for()
        rows(page, "Fragments").get_by_role("link", name="0", exact=True).click()
        page.locator("td .pill.good", has_text="intact").nth(2).wait_for()


def test_the_median_and_the_99th_percentile_are_of_samples_between_two_polls(cli, filled, browse, tmp_path):
    """Between two looks, bookie-1 has 90 writes of up to 1 ms and 10 of up to 5 ms, bookie-2 100 of up to 1 ms.

    bookie-3 has fewer than before: it was started again, and nothing can be said of it.
    """
    looks = []

    def answer(route) -> None:
        told = route.fetch().json()
        came = len(looks)
        looks.append(told["at_ms"])
        told["numbers_at_ms"] = looks[0] + 1_000 * came
        counts = ((1_000 + 90 * came, 2_000 + 100 * came), (100 * came, 100 * came), (-came, -came))
        for bookie, (low, high) in zip(told["bookies"], counts, strict=True):
            bookie["numbers"], bookie["numbers_at_ms"] = {}, told["numbers_at_ms"]
            bookie["times"] = {"adds": [[0.001, low], [0.005, high], [None, high]], "reads": [[0.001, 0], [None, 0]]}
        route.fulfill(json=told)

    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(f"{url}#/streams")
        page.route("**/api/v1/overview", answer)
        page.goto(f"{url}#/")
        tile = page.locator(".tile", has=page.get_by_role("heading", name="Write latency"))
        tile.get_by_text("0.53 ms", exact=True).wait_for()
        tile.get_by_text("99 % in 4.20 ms").wait_for()
        shown = [row.text_content() for row in rows(page, "Bookies").all()]
        assert "4.60 ms" in shown[0]
        assert "0.99 ms" in shown[1]
        assert " ms" not in shown[2]
        reads = page.locator(".tile", has=page.get_by_role("heading", name="Read latency"))
        assert "ms" not in reads.locator(".value").text_content(), "there were none"


@pytest.fixture
def locked(cluster, tmp_path) -> tuple[str, str]:
    """The shared cluster with a ledger of one entry and the password "secret"; its id."""
    (tmp_path / "password").touch(mode=0o600)
    (tmp_path / "password").write_text("secret")
    protected = ("--password-file", tmp_path / "password")
    ledger = cluster("ledger", "create", *protected).out.decode().strip()
    assert cluster("ledger", "append", ledger, *protected, "--close", stdin=b"x\n").code == 0
    return cluster.metadata, ledger


def test_a_ledger_is_deleted_after_a_question_and_with_its_password_only(cli, locked, browse, tmp_path):
    metadata, ledger = locked
    with console(cli, metadata, tmp_path / "err") as (url, _):
        page = browse(f"{url}#/ledgers/{ledger}")
        page.get_by_role("button", name="Delete").click()
        asked = page.get_by_role("dialog")
        assert "its one entry" in asked.text_content()
        asked.get_by_label("Password").fill("wrong")
        asked.get_by_role("button", name="Delete").click()
        asked.get_by_role("alert").get_by_text("password").wait_for()
        assert asked.get_by_label("Password").input_value() == "", "no password is left standing there"
        asked.get_by_label("Password").fill("secret")
        asked.get_by_role("button", name="Delete").click()
        page.get_by_role("heading", name="Ledgers").wait_for()
        page.goto(f"{url}#/ledgers/{ledger}")
        page.get_by_role("alert").get_by_text(f"there is no ledger {ledger}").wait_for()


@contextmanager
def secured(cli, authority, root: Path) -> Iterator[str]:
    """The page of a cluster of one bookie, with security: for ``root`` and ``looks``, which have tokens."""
    rules = root / "authority/access.toml"
    principal = '\n[[principal]]\nname = "{0}"\nroles = ["{1}"]\ntokens = ["{0}"]\n'
    rules.write_text(rules.read_text() + principal.format("looks", "reader"))
    authority.issue(root / "local", Subject(Role.BOOKIE, "local", ("127.0.0.1",)), days=1)
    words = ["up", "--data", root / "data", "--bookies", 1, "--no-gateway", "--no-offload", "--no-repair", "--json"]
    process = subprocess.Popen(
        [*TALLYBOOK, *map(str, [*words, *cli.small])], env=environment(TALLYBOOK_SECURITY=str(root / "local")),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield json.loads(process.stdout.readline())["console"]["url"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_token_shows_what_its_role_permits_and_without_one_nothing_is_shown(cli, authority, browse, tmp_path):
    token = authority.token("looks", lifetime=timedelta(hours=1))
    with secured(cli, authority, tmp_path) as url:
        assert url.startswith("https://")
        # What Chromium makes of certificates of an authority of one's own is not what is tried here.
        page = browse(url, until="#sign-in[open]", ignore_https_errors=True)
        page.locator("#live", has_text="not signed in").wait_for()
        assert page.locator("#sign-in-error").text_content() == "", "no token was refused yet"
        page.get_by_label("Token").fill("nonsense")
        page.get_by_role("button", name="Sign in").click()
        page.locator("#sign-in[open] #sign-in-error:not(:empty)").wait_for()
        assert rows(page, "Bookies").count() == 0
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_selector("#live.live")
        assert rows(page, "Bookies").count() == 1
        page.get_by_role("link", name="bookie-1").click()
        page.get_by_role("button", name="Drain bookie-1").click()
        page.get_by_role("dialog").get_by_role("button", name="Drain").click()
        page.locator("#confirm-error", has_text="looks").wait_for()
        page.get_by_role("button", name="Cancel").click()
        assert all(token not in each for each in page.asked), "a token is in no address"
        page.reload()
        page.wait_for_selector("#live.live")
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_selector("#sign-in[open]")
        assert rows(page, "Bookies").count() == 0


def test_what_does_not_exist_is_said_in_words(cli, filled, browse, tmp_path):
    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(url)
        page.goto(f"{url}#/ledgers/99999999")
        page.get_by_role("alert").get_by_text("there is no ledger 99999999").wait_for()
        assert page.locator("#live").text_content() == "live", "the console has answered"
        page.goto(f"{url}#/nonsense")
        page.get_by_role("alert").get_by_text("there is no such view").wait_for()
        assert page.locator("#live").text_content() == "live"


def test_ledgers_are_listed_newest_first_and_found_by_name_and_state(cli, filled, browse, tmp_path):
    metadata, ledger = filled
    with console(cli, metadata, tmp_path / "err") as (url, _):
        page = browse(f"{url}#/ledgers")
        times = rows(page, "Ledgers").locator("td:last-child")
        times.nth(1).wait_for()
        assert times.all_text_contents() == sorted(times.all_text_contents(), reverse=True)
        assert page.locator("th[aria-sort='descending']").text_content().startswith("Created")
        page.get_by_label("Name or id").fill("<SCRIPT>")
        page.get_by_role("button", name="Search").click()
        page.get_by_text(re.compile(r"^1 of \d+ ledgers")).wait_for()
        assert rows(page, "Ledgers").get_by_role("link", name=str(ledger), exact=True).count() == 1
        page.get_by_label("State").select_option("open")
        page.get_by_text("No ledger matches.").wait_for()
        page.goto(f"{url}#/ledgers")
        page.get_by_role("link", name="Size").click()
        page.locator("th[aria-sort='descending']", has_text="Size").wait_for()
        page.get_by_role("link", name="Size").click()
        page.locator("th[aria-sort='ascending']", has_text="Size").wait_for()


def test_streams_are_found_by_a_part_of_their_name(cli, filled, browse, tmp_path):
    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(f"{url}#/streams")
        page.get_by_label("Name").fill("ORDERS")
        page.keyboard.press("Enter")
        # The field is built anew with the answer; what is typed before that is lost.
        page.locator("input[data-key=ORDERS]").wait_for()
        page.get_by_role("link", name=STREAM).wait_for()
        page.get_by_label("Name").fill("nothing like it")
        page.get_by_role("button", name="Search").click()
        page.get_by_text("No stream matches.").wait_for()


def test_ids_beyond_what_a_browser_can_count_to_are_shown_whole(cli, filled, browse, tmp_path):
    """Ids up to 2^63 - 1: as numbers, JavaScript would round them."""
    ledger, entry = str(2**63 - 1), str(2**53 + 1)
    fragments = [{"first_entry_id": 0, "bookies": ["bookie-1"]}, {"first_entry_id": entry, "bookies": ["bookie-2"]}]
    told = {
        "ledger_id": ledger, "state": "closed", "entries": str(2**53 + 2), "bytes": 7, "last_entry_id": entry,
        "ensemble": 1, "write_quorum": 1, "ack_quorum": 1, "created_at": None, "password": False, "digest": "crc32c",
        "fragments": fragments, "missed": [], "archive": None, "custom": {}, "last_add_confirmed": entry,
    }  # fmt: skip
    page_of_list = {"ledgers": [told], "next": None, "matches": 1, "indexed": 1, "total": 1, "at_ms": 1, "age_ms": 1,
                    "why": "", "unreadable": 0}  # fmt: skip
    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(f"{url}#/maintenance")
        page.route("**/api/v1/ledgers?*", lambda route: route.fulfill(json=page_of_list))
        page.route(f"**/api/v1/ledgers/{ledger}", lambda route: route.fulfill(json=told))
        page.goto(f"{url}#/ledgers")
        page.get_by_role("link", name=ledger, exact=True).click()
        page.get_by_role("heading", name=f"Ledger {ledger}").wait_for()
        assert rows(page, "Fragments").nth(0).text_content() == f"0{2**53}bookie-1"
        assert rows(page, "Fragments").nth(1).text_content() == f"{entry}{entry}bookie-2"
        page.get_by_text(f"{2**53 + 2:,}", exact=True).wait_for()


def test_the_keyboard_is_enough_and_a_renewed_page_keeps_the_focus(cli, filled, browse, tmp_path):
    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(url)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "view"
        assert page.evaluate("location.hash") in {"", "#/"}, "where it leads is no view"
        assert rows(page, "Bookies").count() == 3
        page.get_by_role("link", name="bookie-3").focus()
        for _ in range(3):
            with page.expect_response(re.compile("overview")):
                pass
        assert page.evaluate("document.activeElement.textContent") == "bookie-3"
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="bookie-3").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "bookie-3", "the heading of the new view"
        with page.expect_response(re.compile("overview")):
            pass
        assert page.evaluate("document.activeElement.tagName") == "H1", "and a renewed view leaves it there"
        page.get_by_role("button", name="Drain bookie-3").focus()
        page.keyboard.press("Enter")
        page.get_by_role("dialog").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "Cancel", "what does nothing comes first"
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="hidden")


def test_what_the_console_itself_has_not_seen_for_long_is_called_old(cli, filled, browse, tmp_path):
    """The console answers at once, and with what is older each time."""
    age_ms = 1_000

    def answer(route) -> None:
        nonlocal age_ms
        told = route.fetch().json()
        age_ms += 8_000
        route.fulfill(json=told | {"age_ms": age_ms, "why": "nobody answers" if age_ms > 30_000 else ""})

    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(url)
        page.route("**/api/v1/overview", answer)
        page.locator("#live.stale", has_text=re.compile("^1[2-9] s old$|^2. s old$")).wait_for()
        page.locator("#live.stale", has_text=re.compile("^[3-9]. s old: nobody answers$")).wait_for()
        assert rows(page, "Bookies").count() == 3, "it stays to be seen"


def test_what_is_not_known_yet_is_not_shown_as_nothing(cli, filled, browse, tmp_path):
    def unknown(route) -> None:
        told = route.fetch().json()
        nothing = dict.fromkeys(("at_ms", "age_ms", "bookies", "ledgers", "copies", "archive", "auditor", "offload"))
        route.fulfill(json=told | nothing)

    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(f"{url}#/ledgers")
        page.route("**/api/v1/overview", unknown)
        page.goto(f"{url}#/")
        page.get_by_text("polled for the first time").wait_for()
        page.locator("#live.stale", has_text="nothing is known yet").wait_for()
        assert not page.complaints


def test_a_cluster_whose_ledgers_are_not_counted_is_not_shown_as_healthy(cli, filled, browse, tmp_path):
    def uncounted(route) -> None:
        route.fulfill(json=route.fetch().json() | {"ledgers": None, "problems": [], "healthy": None})

    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(f"{url}#/ledgers")
        page.route("**/api/v1/overview", uncounted)
        page.goto(f"{url}#/")
        page.locator(".health", has_text="the ledgers are not counted").wait_for()
        assert page.locator(".health.good, .health.bad").count() == 0
        assert not page.complaints


def test_every_finding_of_the_diagnosis_is_shown_with_its_process_and_its_evidence(
    cli, filled, blocked, browse, tmp_path
):
    others = ("--set", f"processes={blocked},127.0.0.1:1")
    with console(cli, filled[0], tmp_path / "err", *others) as (url, _):
        page = browse(url)
        finding = rows(page, "Findings").filter(has_text="cpu-bound")
        finding.wait_for()
        assert blocked in finding.text_content()
        assert "delay of its timers" in finding.locator(".evidence .above").last.text_content()
        page.locator(".diagnosis", has_text=f"cpu-bound ({blocked})").wait_for()
        page.locator(".silent li", has_text="127.0.0.1:1 is silent").wait_for()


def test_bookies_that_do_not_tell_their_numbers_are_not_taken_for_idle_ones(cli, filled, browse, tmp_path):
    silent = 1

    def answer(route) -> None:
        told = route.fetch().json()
        for bookie in told["bookies"][:silent]:
            bookie |= {"numbers": None, "times": None, "numbers_at_ms": None, "silent": "no answer"}
        route.fulfill(json=told)

    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(f"{url}#/ledgers")
        page.route("**/api/v1/overview", answer)
        page.goto(f"{url}#/")
        tile = page.locator(".tile", has=page.get_by_role("heading", name="Writes"))
        tile.get_by_text("of 2 of 3 bookies").wait_for()
        tile.locator(".value", has_text="B/s").wait_for()
        assert "does not report metrics" in rows(page, "Bookies").first.text_content()
        silent = 3
        page.get_by_text("of 0 of 3 bookies").first.wait_for()
        tile.locator(".value", has_text=re.compile("^\u2013$")).wait_for()


def test_a_ledger_that_cannot_be_read_is_a_row_that_says_so(cli, filled, browse, tmp_path):
    def answer(route) -> None:
        row = {"ledger_id": 7, "state": "unreadable", "why": "written by a newer Tallybook"}
        counted = {"matches": 1, "indexed": 1, "total": 1, "at_ms": 1, "age_ms": 1, "why": "", "unreadable": 1}
        route.fulfill(json={"ledgers": [row], "next": None, **counted})

    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(url)
        page.route("**/api/v1/ledgers*", answer)
        page.goto(f"{url}#/ledgers")
        row = rows(page, "Ledgers").first
        row.locator(".pill.bad", has_text="unreadable").wait_for()
        text = row.text_content()
        assert "written by a newer Tallybook" in text
        assert "undefined" not in text
        assert "Invalid" not in text


def test_lists_that_are_cut_say_how_much_is_left(cli, filled, browse, tmp_path):
    task = {"task": "0-1", "unreadable": "", "ledgers": [3], "why": "lost", "owner": None, "progress": None}
    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(url)
        more = {"paused_since_ms": None, "tasks": [task], "next": "0-1", "total": 240, "progress": {"tasks": 0}}
        page.route("**/api/v1/repair*", lambda route: route.fulfill(json=more))
        page.route("**/api/v1/namespaces*", lambda route: route.fulfill(
            json={"namespaces": ["default"], "next": "default", "total": 71}
        ))  # fmt: skip
        page.goto(f"{url}#/maintenance")
        page.get_by_text("and 239 more").wait_for()
        with page.expect_request(re.compile("repair.after=0-1")):
            page.get_by_role("link", name="Next tasks").click()
        page.goto(f"{url}#/streams")
        page.get_by_text("and 70 more namespaces").wait_for()


def test_the_repair_process_is_shown_and_an_auditor_pass_is_run_on_demand(cli, filled, browse, tmp_path):
    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(f"{url}#/maintenance")
        page.locator(".pill.good", has_text="running at ").wait_for()
        page.get_by_role("button", name="Audit now").click()
        page.get_by_role("dialog").get_by_role("button", name="Audit now").click()
        page.get_by_text("0 tasks published").wait_for()
        assert page.locator("main").get_by_text("UTC").count() >= 1, "a time has a zone"


def test_a_console_that_ends_is_seen_and_what_was_shown_is_called_old(cli, filled, browse, tmp_path):
    with console(cli, filled[0], tmp_path / "err") as (url, process):
        page = browse(url)
        rows(page, "Bookies").first.wait_for()
        process.send_signal(signal.SIGKILL)
        page.locator("#live.stale", has_text="the console does not answer").wait_for()
        assert rows(page, "Bookies").count() == 3


def test_a_bookie_is_drained_after_a_question_and_one_that_dies_is_seen(cli, browse, tmp_path):
    with cli.up(tmp_path / "cluster") as up, console(cli, up.metadata, tmp_path / "err") as (url, _):
        page = browse(url)
        mode = rows(page, "Bookies").nth(1).locator(".pill")
        assert mode.text_content() == "writable"
        assert rows(page, "Bookies").get_by_role("button").count() == 0, "no row is drained by one click beside it"
        page.get_by_role("link", name="bookie-2").click()
        page.get_by_role("button", name="Drain bookie-2").click()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Drain bookie-2").click()
        assert "its data to other bookies" in page.get_by_role("dialog").text_content()
        with page.expect_response(re.compile("bookies/bookie-2/drain")) as answer:
            page.get_by_role("dialog").get_by_role("button", name="Drain").click()
        assert answer.value.status == 200
        page.locator(".title .pill.warn", has_text="draining").wait_for()
        drains = [each for each in page.asked if each.endswith("/drain")]
        assert len(drains) == 1, "the question that was cancelled did nothing"
        page.get_by_role("button", name="Undrain bookie-2").wait_for()
        page.get_by_role("link", name="Overview").first.click()
        os.kill(up.pids[2], signal.SIGKILL)
        page.locator(".health.bad").wait_for()
        page.locator(".health li", has_text="bookie-3").wait_for()


@pytest.mark.skipif(not SCREENSHOTS, reason="make console-screenshots wants them")
def test_pictures_of_the_page_are_taken(cli, browse, plain_place, tmp_path):
    with cli.up(tmp_path / "cluster") as up, contextlib.ExitStack() as undo:
        ledger, growing = _fill(up)
        bucket = f"file://{plain_place}/archive"
        offloader = cli.start("offload", "run", "--archive", bucket, "--metadata", up.metadata, "--set",
                              "max_set_wait_s=0", "--set", "interval_s=3", stdout=subprocess.DEVNULL)  # fmt: skip
        undo.enter_context(offloader)
        undo.callback(offloader.kill)
        undo.enter_context(_stream_that_is_used(up.metadata))
        load = cli.start("ledger", "append", growing, "--metadata", up.metadata, stdin=subprocess.PIPE,
                         stdout=subprocess.DEVNULL)  # fmt: skip
        undo.enter_context(load)
        undo.callback(load.kill)
        reader = cli.start("ledger", "tail", growing, "--metadata", up.metadata, stdout=subprocess.DEVNULL)
        undo.enter_context(reader)
        undo.callback(reader.kill)
        with console(cli, up.metadata, tmp_path / "err") as (url, _):
            page = browse(url)
            _load(page, load, turns=40)
            for name, place in _VIEWS.items():
                page.emulate_media(color_scheme="dark" if name == "dark" else "light")
                page.goto(url + place(ledger))
                page.wait_for_selector("#live.live")
                # The lag of subscriptions is polled only while the view is open.
                _load(page, load, turns=40 if name == "stream" else 4)
                # With a path, it would write in a thread that exists as long as the browser.
                Path(SCREENSHOTS, f"console-{name}.png").write_bytes(page.screenshot())


@contextmanager
def _stream_that_is_used(metadata: str) -> Iterator[None]:
    """While the block runs, orders/eu is written, and read by one reader that follows and one that polls rarely."""
    over = threading.Event()

    async def read(streams: StreamStore, name: str, batch: int) -> None:
        held = 0
        async with await streams.subscribe("orders/eu", name) as subscription:
            async for record in subscription:
                held += 1
                if held % batch == 0:
                    await subscription.advance(record.position)

    async def use() -> None:
        async with Client(metadata) as client, StreamStore(client, name="shop-1") as streams:
            readers = [asyncio.create_task(read(streams, *each)) for each in (("mail", 25), ("billing", 800))]
            async with await streams.writer("orders/eu") as writer:
                while not over.is_set():
                    for _ in range(20):
                        await writer.append(b"an order")
                    await asyncio.sleep(0.1)
            for each in readers:
                each.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    user = threading.Thread(target=lambda: asyncio.run(use()))
    user.start()
    try:
        yield
    finally:
        over.set()
        user.join(60)


def _fill(up) -> tuple[str, str]:
    """Ledgers, and a stream with subscriptions; a closed ledger, and an open one."""
    closed = []
    for size in (5_000, 800, 12_000):
        closed.append(up("ledger", "create").out.decode().strip())
        up("ledger", "append", closed[-1], "--close", stdin=b"an entry of this ledger\n" * size)
    up("stream", "create", "orders/eu", "--retention", "30d")
    for size in (2_000, 3_500, 1_200):
        up("stream", "append", "orders/eu", stdin=b"an order\n" * size)
    for name, place in (("billing", "6180"), ("mail", "latest"), ("search", "earliest")):
        up("subscription", "create", "orders/eu", name, "--from", place)
    return closed[0], up("ledger", "create").out.decode().strip()


_VIEWS: dict[str, Callable[[str], str]] = {
    "overview": lambda _: "#/",
    "ledger": lambda ledger: f"#/ledgers/{ledger}",
    "entry": lambda ledger: f"#/ledgers/{ledger}/entries/0",
    "stream": lambda _: "#/streams/default/orders%2Feu",
    "dark": lambda _: "#/",
}


def _load(page, load: subprocess.Popen[bytes], turns: int) -> None:
    """Write at a rate that changes, so that there is something to see."""
    for turn in range(turns):
        for _ in range(4):
            load.stdin.write((b"x" * 999 + b"\n") * (20 + 12 * (turn % 7)))
            load.stdin.flush()
            page.wait_for_timeout(200)
