"""Maintenance on the page of the console, in a real browser: disks, an archive, and a repair in progress."""

import contextlib
import re
from pathlib import Path

import pytest

from .conftest import CHROMIUM, SCREENSHOTS
from .consoles import PAYLOAD_BYTES, archiving, closed_ledger, console_process, lose_a_bookie, repairing, rows, running

pytestmark = [pytest.mark.browser, pytest.mark.skipif(not CHROMIUM, reason="make console-test gives it a browser")]


def fact(page, name: str) -> str:
    """The text of a view under a name."""
    named = page.locator("dt", has_text=re.compile(f"^{name}$"))
    return page.locator(".facts > div", has=named).locator("dd").text_content()


def test_every_disk_of_a_bookie_has_a_meter_and_every_directory_a_row(cli, other_disk, browse, tmp_path):
    logs = [tmp_path / "logs", other_disk / "logs"]
    with (
        cli.up(tmp_path / "cluster", "--set", f"ledger_directories={logs[0]},{logs[1]}", bookies=1) as up,
        console_process(cli, up.metadata, tmp_path / "err") as (url, _),
    ):
        page = browse(url)
        row = rows(page, "Bookies").first
        row.get_by_role("meter").nth(1).wait_for()
        labels = [each.get_attribute("aria-label") for each in row.get_by_role("meter").all()]
        assert labels == ["Disk 1 of bookie-1 in use", "Disk 2 of bookie-1 in use"]
        shown = row.locator("td").nth(3).locator(".disk").all_text_contents()
        assert len(row.locator("td").nth(4).locator(".stack > span").all()) == 2, "what is free on each of them"
        told = up("cluster", "status", "--json").json["bookies"][0]["directories"]
        used = {each["disk"]: 1 - each["free_bytes"] / each["total_bytes"] for each in told}
        for at, text in enumerate(shown, 1):
            assert abs(int(text.removesuffix(" %")) - 100 * used[at]) < 5
        meters = [each.evaluate("meter => meter.value") for each in row.get_by_role("meter").all()]
        assert meters == pytest.approx([used[1], used[2]], abs=0.05)
        page.get_by_role("link", name="bookie-1").click()
        page.get_by_role("heading", name="bookie-1").wait_for()
        cells = [row.locator("td").all_text_contents() for row in rows(page, "Directories").all()]
        data = tmp_path / "cluster/bookie-1"
        assert [row[:3] for row in cells] == [
            [f"{data}/journal", "journal", "1"], [str(logs[0]), "ledgers", "1"], [str(logs[1]), "ledgers", "2"],
            [f"{data}/index", "index", "1"],
        ]  # fmt: skip
        assert all(re.fullmatch(r"[\d.]+ [KMGTP]iB", text) for row in cells for text in row[4:6])
        assert {row[6] for row in cells} <= {"has space", "fills up", "full"}
        assert not page.complaints


def test_a_full_disk_is_shown_differently_from_one_with_space(cli, cluster, browse, tmp_path):
    """Two disks of bookie-1: one reports that it is full, the other has only journals, and no further space.

    bookie-2 is of a version that names no directories.
    """

    def directory(role: str, disk: int, free: int, state: str) -> dict[str, object]:
        return {"path": f"/{role}", "role": role, "disk": disk, "total_bytes": 100 << 30, "free_bytes": free << 30,
                "state": state}  # fmt: skip

    def answer(route) -> None:
        told = route.fetch().json()
        one, two, three = told["bookies"]
        one["directories"] = [directory("journal", 1, 1, "room"), directory("ledgers", 2, 3, "short"),
                              directory("index", 2, 3, "short")]  # fmt: skip
        two |= {"directories": [], "disk_used": 0.5, "free_bytes": 7 << 30}
        three["directories"] = [directory("journal", 0, 0, "not known")]
        route.fulfill(json=told)

    with console_process(cli, cluster.metadata, tmp_path / "err") as (url, _):
        page = browse(f"{url}#/ledgers")
        page.route("**/api/v1/overview", answer)
        page.goto(f"{url}#/")
        rows(page, "Bookies").first.get_by_text("97 %").wait_for()
        cells = [row.locator("td") for row in rows(page, "Bookies").all()]
        assert cells[0].nth(3).locator(".disk").all_text_contents() == ["99 %", "97 %"]
        assert cells[0].nth(3).locator(".bad").all_text_contents() == ["97 %"]
        assert cells[0].nth(4).locator(".stack > span").all_text_contents() == ["1.0 GiB", "3.0 GiB"]
        assert (cells[1].nth(3).text_content(), cells[1].nth(4).text_content()) == ("50 %", "7.0 GiB")
        page.unroute_all(behavior="wait")


@pytest.fixture
def archived(cli, tmp_path):
    """A cluster with two ledgers in its archive, and one that waits while its bucket is away; and the bucket."""
    bucket = tmp_path / "bucket"
    with (
        cli.up(tmp_path / "cluster", "--no-repair", bookies=1) as up,
        archiving(cli, up.metadata, bucket, tmp_path / "offload.log"),
    ):
        for _ in range(2):
            closed_ledger(up)
        status = ("offload", "status", "--json")
        cli.wait_until(lambda: up(*status).code == 0 and up(*status).json["released_ledgers"] == 2, "two are archived")
        bucket.rename(tmp_path / "elsewhere")
        bucket.touch()
        closed_ledger(up)
        yield up, bucket


def test_the_archive_is_shown_with_what_is_in_it_what_waits_and_what_failed(cli, archived, browse, tmp_path):
    up, bucket = archived
    with console_process(cli, up.metadata, tmp_path / "err") as (url, _):
        page = browse(f"{url}#/maintenance")
        bar = page.get_by_role("progressbar", name="Part of the closed ledgers that is in the archive")
        page.get_by_text("67 % of the closed ledgers are in the archive").wait_for()
        assert bar.evaluate("bar => bar.value / bar.max") == pytest.approx(2 / 3)
        assert fact(page, "Archived") == "2 ledgers"
        assert fact(page, "Waiting") == f"1 ledger, {PAYLOAD_BYTES / 1024:.1f} KiB"
        assert re.fullmatch(r"\d+ (s|min)", fact(page, "Oldest waiting ledger"))
        page.locator("dd", has_text=re.compile(r"^[\d,]+: ")).wait_for()
        assert "bucket" in fact(page, "Failures")
        page.get_by_text(f"file://{bucket}", exact=True).wait_for()
        bucket.unlink()
        (tmp_path / "elsewhere").rename(bucket)
        page.get_by_text("100 % of the closed ledgers are in the archive").wait_for()
        assert bar.evaluate("bar => bar.value / bar.max") == 1
        assert fact(page, "Waiting") == "0 ledgers, 0 B"
        assert fact(page, "Oldest waiting ledger") == "\u2013"
        page.locator("dd", has_text=re.compile("^3 ledgers$")).first.wait_for()
        assert not page.complaints


def test_a_repair_is_seen_to_go_on_and_to_end(cli, browse, tmp_path):
    with cli.up(tmp_path / "cluster", "--no-repair", bookies=4) as up:
        ledgers = [closed_ledger(up, ensemble=3, times=40) for _ in range(3)]
        lose_a_bookie(up, ledgers)
        with console_process(cli, up.metadata, tmp_path / "err") as (url, _):
            page = browse(f"{url}#/maintenance")
            page.get_by_text("Nothing to repair.").wait_for()
            with repairing(cli, up.metadata, tmp_path / "repair.log"):
                _watch(page, ledgers)
        assert not page.complaints


def _watch(page, ledgers: list[int]) -> None:
    whole = page.get_by_role("progressbar", name="Finished part of the repair")
    page.locator(".progress", has_text=re.compile(r"iB/s · about \d+ s left")).wait_for()
    told, value = page.locator(".progress").text_content(), whole.evaluate("bar => bar.value")
    assert re.search(r"[0-2] of 3 ledgers repaired · [\d.]+ [KM]iB of about 6.1 MiB copied", told), told
    assert 0 < value < 1
    task = rows(page, "Repair tasks").first.locator("td")
    assert task.nth(0).text_content() == "lost bookie"
    assert re.fullmatch("[0-2] of 3", task.nth(2).text_content())
    mended = rows(page, "Ledgers in repair").first
    assert int(mended.get_by_role("link").text_content()) in ledgers
    assert mended.locator("td").nth(1).text_content() in {"0 of 1", "1 of 1"}
    # A repair that has ended meanwhile has taken the bar away.
    moved = "([bar, before]) => !bar.isConnected || bar.value > before"
    page.wait_for_function(moved, arg=[whole.element_handle(), value])
    page.get_by_text("Nothing to repair.").wait_for()
    page.locator(
        "dd", has_text=re.compile(r"^3 ledgers checked, [\d.]+ MiB copied .* 3 ensemble positions given")
    ).wait_for()
    assert fact(page, "Ledgers with too few good copies") == "0"


@pytest.mark.skipif(not SCREENSHOTS, reason="make console-screenshots wants them")
def test_screenshots_of_a_bookie_and_of_a_running_repair_are_taken(cli, browse, plain_place, tmp_path):
    with cli.up(plain_place / "cluster", "--no-repair", bookies=4) as up, contextlib.ExitStack() as undo:
        bucket, status = f"file://{plain_place}/archive", ("offload", "status", "--json")
        for _ in range(9):
            closed_ledger(up, ensemble=3, times=40)
        assert up("offload", "run", "--once", "--archive", bucket, "--set", "max_set_wait_s=0").code == 0
        words = ["offload", "run", "--archive", bucket, "--metadata", up.metadata, "--set", "interval_s=2"]
        undo.enter_context(running(cli, *words, log=tmp_path / "offload.log"))
        undo.enter_context(repairing(cli, up.metadata, tmp_path / "repair.log"))
        for _ in range(2):
            closed_ledger(up, ensemble=3, times=40)
        cli.wait_until(lambda: up(*status).json["last_round_s_ago"] is not None, "a round")
        url, _ = undo.enter_context(console_process(cli, up.metadata, tmp_path / "err"))
        page = browse(f"{url}#/bookies/bookie-2")
        rows(page, "Directories").nth(2).wait_for()
        page.locator(".tile .value", has_text="B/s").wait_for()
        Path(SCREENSHOTS, "console-bookie.png").write_bytes(page.screenshot())
        assert up("bookie", "drain", "bookie-4").code == 0
        page.goto(f"{url}#/maintenance")
        page.locator(".progress strong", has_text=re.compile(r"^[3-5]\d %$")).wait_for()
        Path(SCREENSHOTS, "console-maintenance.png").write_bytes(page.screenshot())
