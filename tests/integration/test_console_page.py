"""The console's page in a real browser, on real bookies: what people see and do there, and what names cannot do.

With TALLYBOOK_SCREENSHOTS, a folder, pictures of the views are put there.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tallybook.client.client import Client
from tallybook.stream import StreamStore

CHROMIUM = os.environ.get("TALLYBOOK_CHROMIUM", "")
SCREENSHOTS = os.environ.get("TALLYBOOK_SCREENSHOTS", "")
PATIENCE_MS = 45_000
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
BAD_NAME = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"
STREAM = "shop/<b>orders</b>"

pytestmark = [pytest.mark.browser, pytest.mark.skipif(not CHROMIUM, reason="make console-test gives it a browser")]


@contextmanager
def console(cli, metadata: str, errors: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A console of a cluster; its URL and its process."""
    words = ["console", "run", "--json", "--metadata", metadata, "--listen", "127.0.0.1:0"]
    with errors.open("wb") as said:
        process = cli.start(*words, stdout=subprocess.PIPE, stderr=said)
    try:
        line = process.stdout.readline()
        assert line, errors.read_text()
        yield json.loads(line)["ready"], process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def browse(tmp_path):
    """``browse(url)``: a page in a new browser, and all that it asked for and complained of."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as engine, contextlib.ExitStack() as undo:

        def opened(url: str, **options: object):
            context = engine.chromium.launch_persistent_context(
                tmp_path / "profile", executable_path=CHROMIUM, args=FLAGS, headless=True,
                viewport={"width": 1280, "height": 820}, **options,
            )  # fmt: skip
            undo.callback(context.close)
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            page.asked, page.complaints = [], []
            page.on("request", lambda request: page.asked.append(request.url))
            page.on("console", lambda said: page.complaints.append(said.text))
            page.on("pageerror", lambda error: page.complaints.append(str(error)))
            page.goto(url)
            page.wait_for_selector("#live.live")
            return page

        yield opened


@pytest.fixture
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


def rows(page, label: str):
    return page.locator(f"[aria-label='{label}'] tbody tr")


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


def test_names_are_text_whatever_is_in_them_and_nothing_comes_from_elsewhere(cli, filled, browse, tmp_path):
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


def test_what_does_not_exist_is_said_in_words(cli, filled, browse, tmp_path):
    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(url)
        page.goto(f"{url}#/ledgers/99999999")
        page.get_by_role("alert").get_by_text("there is no ledger 99999999").wait_for()
        page.goto(f"{url}#/nonsense")
        page.get_by_role("alert").get_by_text("there is no such view").wait_for()


def test_the_keyboard_is_enough_and_a_renewed_page_keeps_the_focus(cli, filled, browse, tmp_path):
    with console(cli, filled[0], tmp_path / "err") as (url, _):
        page = browse(url)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.get_by_role("link", name="bookie-3").focus()
        for _ in range(3):
            with page.expect_response(re.compile("overview")):
                pass
        assert page.evaluate("document.activeElement.textContent") == "bookie-3"
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="bookie-3").wait_for()
        page.get_by_role("button", name="Drain bookie-3").focus()
        page.keyboard.press("Enter")
        page.get_by_role("dialog").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "Cancel", "what does nothing comes first"
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="hidden")


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
        page.get_by_role("button", name="Drain bookie-2").click()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Drain bookie-2").click()
        assert "it has to others" in page.get_by_role("dialog").text_content()
        with page.expect_response(re.compile("bookies/bookie-2/drain")) as answer:
            page.get_by_role("dialog").get_by_role("button", name="Drain").click()
        assert answer.value.status == 200
        rows(page, "Bookies").nth(1).locator(".pill.warn", has_text="draining").wait_for()
        drains = [each for each in page.asked if each.endswith("/drain")]
        assert len(drains) == 1, "the question that was cancelled did nothing"
        page.get_by_role("button", name="Undrain bookie-2").wait_for()
        os.kill(up.pids[2], signal.SIGKILL)
        page.locator(".health.bad").wait_for()
        page.locator(".health li", has_text="bookie-3").wait_for()


@pytest.mark.skipif(not SCREENSHOTS, reason="make console-screenshots wants them")
def test_pictures_of_the_page_are_taken(cli, browse, tmp_path):
    with cli.up(tmp_path / "cluster", "--offload") as up:
        ledger = up("ledger", "create").out.decode().strip()
        up("ledger", "append", ledger, "--close", stdin=b"entry\n" * 5_000)
        up("stream", "create", "orders/eu")
        up("stream", "append", "orders/eu", stdin=b"order\n" * 2_000)
        for name in ("billing", "mail"):
            up("subscription", "create", "orders/eu", name, "--from", "earliest")
        growing = up("ledger", "create").out.decode().strip()
        load = cli.start("ledger", "append", growing, "--metadata", up.metadata, stdin=subprocess.PIPE,
                         stdout=subprocess.DEVNULL)  # fmt: skip
        with console(cli, up.metadata, tmp_path / "err") as (url, _):
            page = browse(url)
            _load(page, load, turns=24)
            for name, place in _VIEWS.items():
                page.goto(url + place(ledger))
                page.wait_for_selector("#live.live")
                page.wait_for_timeout(500)
                page.screenshot(path=Path(SCREENSHOTS) / f"console-{name}.png")
            page.emulate_media(color_scheme="dark")
            page.goto(f"{url}#/")
            page.wait_for_selector(".tiles")
            page.screenshot(path=Path(SCREENSHOTS) / "console-dark.png")
        load.stdin.close()
        load.wait(cli.patience)


_VIEWS: dict[str, Callable[[str], str]] = {
    "overview": lambda _: "#/",
    "ledger": lambda ledger: f"#/ledgers/{ledger}",
    "entry": lambda ledger: f"#/ledgers/{ledger}/entries/0",
    "stream": lambda _: "#/streams/default/orders%2Feu",
}


def _load(page, load: subprocess.Popen[bytes], turns: int) -> None:
    """Write at a rate that changes, so that there is something to see."""
    for turn in range(turns):
        for _ in range(10 + 12 * (turn % 7)):
            load.stdin.write(b"x" * 999 + b"\n")
        load.stdin.flush()
        page.wait_for_timeout(1_000)
