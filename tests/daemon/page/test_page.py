"""The page in a real browser: it draws, complains of nothing, and says when the head is away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from daemon.page.app import PageOptions, page_app
from tests.daemon.page.pretend import PretendHead

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium here to open the page with")


@contextlib.asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        await runner.cleanup()


async def opened(url: str, profile: Path, milliseconds: int = 5000) -> tuple[str, list[str]]:
    """The page as it stands after ``milliseconds`` of its own time, and its complaints."""
    process = await asyncio.create_subprocess_exec(
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        f"--user-data-dir={profile}",
        f"--virtual-time-budget={milliseconds}",
        "--window-size=1600,1000",
        "--dump-dom",
        url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, log = await asyncio.wait_for(process.communicate(), 90)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    complaints = re.findall(r"CONSOLE[^\n]*", log.decode(errors="replace"))
    return out.decode(), complaints


async def test_the_page_shows_the_fleet_and_complains_of_nothing(tmp_path: Path) -> None:
    async with serving(page_app(PretendHead(64), PageOptions())) as url:
        page, complaints = await opened(url, tmp_path)
    assert complaints == []
    assert "64 nodes, 5 need a look" in page
    assert page.count('class="chip ') == 8
    # 8 lines a chart: the chosen GPU and its seven siblings.
    assert page.count('class="sibling"') == 6 * 7
    assert page.count('class="own"') == 6
    assert "fell off the bus; risk 0.91/24h" in page
    assert "1 of 1 drains this hour are used" in page
    assert re.search(r'<p id="away"[^>]*hidden', page)


async def test_the_page_follows_the_drained_node_until_one_is_chosen(tmp_path: Path) -> None:
    async with serving(page_app(PretendHead(64), PageOptions())) as url:
        followed, _ = await opened(url, tmp_path / "a")
        chosen, complaints = await opened(url + "#gpu-0043", tmp_path / "b")
    assert complaints == []
    assert re.search(r'id="node-title">gpu-0018<', followed)
    assert re.search(r'id="node-title">gpu-0043<', chosen)
    assert 'id="follow" type="button" aria-pressed="false"' in chosen


async def test_ten_thousand_nodes_are_drawn(tmp_path: Path) -> None:
    async with serving(page_app(PretendHead(10_000), PageOptions())) as url:
        page, complaints = await opened(url, tmp_path)
    assert complaints == []
    assert "10000 nodes," in page


async def test_the_page_says_that_the_head_is_away_and_keeps_what_it_knew(tmp_path: Path) -> None:
    head = PretendHead(64)
    asked = 0
    real = head.fleet

    async def dies():  # type: ignore[no-untyped-def]
        nonlocal asked
        asked += 1
        if asked > 2:
            raise RuntimeError("gone")
        return await real()

    head.fleet = dies  # type: ignore[method-assign]
    async with serving(page_app(head, PageOptions())) as url:
        page, _ = await opened(url, tmp_path, 15_000)
    away = re.search(r'<p id="away" role="alert">([^<]*)', page)
    assert away is not None
    assert "does not answer" in away[1]
    assert "What you see is from" in away[1]
    assert "64 nodes, 5 need a look" in page


async def test_hostile_text_stays_text(tmp_path: Path) -> None:
    head = PretendHead(64)
    hostile = "<img src=x onerror=\"document.title='owned'\">"
    head.change("gpu-0018", reason=hostile, slurm_state=hostile, device="gpu3")
    async with serving(page_app(head, PageOptions())) as url:
        page, complaints = await opened(url, tmp_path)
    assert complaints == []
    assert "<title>tocsin</title>" in page
    assert "&lt;img src=x" in page
