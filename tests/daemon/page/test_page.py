"""The page in a real browser: it draws, obeys mouse and keys, and says when the head is away."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from daemon.gate.tokens import TokenFile
from daemon.page.app import PageOptions, page_app
from tests.daemon.page.browser import PROGRAM, Tab, tab
from tests.daemon.page.pretend import PretendHead, beside, skewed

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium here to open the page with")

TITLE = "document.getElementById('node-title').firstChild.textContent"
DRAWN = "document.querySelectorAll('path.own').length === 6"


@contextlib.asynccontextmanager
async def serving(head: PretendHead, options: PageOptions | None = None) -> AsyncIterator[str]:
    app = page_app(head, options or PageOptions())
    app.add_routes(beside(head))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def opened(head: PretendHead, profile: Path, anchor: str = "") -> AsyncIterator[Tab]:
    async with serving(head) as url, tab(url + anchor, profile) as page:
        await page.until(DRAWN)
        yield page


@contextlib.asynccontextmanager
async def opened_by(name: str, head: PretendHead, folder: Path) -> AsyncIterator[Tab]:
    """The page of a person with a login of their own."""
    file = folder / "logins"
    file.write_text(f"{name} a-secret-of-their-own\n")
    file.chmod(0o600)
    given = base64.b64encode(f"{name}:a-secret-of-their-own".encode()).decode()
    async with (
        serving(head, PageOptions(logins=TokenFile(file))) as url,
        tab("about:blank", folder / "profile") as page,
    ):
        await page.do("Network.enable")
        await page.do("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {given}"})
        await page.do("Page.navigate", url=url)
        await page.until(DRAWN)
        yield page


async def text(page: Tab, selector: str) -> str:
    return str(await page.value(f"document.querySelector({selector!r}).textContent"))


async def test_the_page_shows_fleet_decisions_and_one_nodes_gpus(tmp_path: Path) -> None:
    async with opened(PretendHead(64), tmp_path) as page:
        label = await page.value("document.getElementById('grid').getAttribute('aria-label')")
        assert label.startswith("64 nodes, 5 need a look")
        assert await page.value("document.querySelectorAll('.chip').length") == 8
        # Eight lines a chart: the chosen GPU and its seven siblings.
        assert await page.value("document.querySelectorAll('path.sibling').length") == 6 * 7
        decided = await text(page, "#decided")
        assert "fell off the bus; risk 0.91/24h" in decided
        assert "1 of 1 drains this hour are used" in decided
        assert "hotter than siblings" in await text(page, "#reasons")
        assert await page.value("document.getElementById('away').hidden") is True
        assert page.complaints == []


async def test_activity_is_charted_where_it_is_read_and_takes_no_place_elsewhere(
    tmp_path: Path,
) -> None:
    titles = "[...document.querySelectorAll('#charts h4')].map((one) => one.textContent)"
    for profiled in (False, True):
        head = PretendHead(64)
        head.profiled = profiled
        async with opened(head, tmp_path / str(profiled)) as page:
            shown = await page.value(titles)
            assert len(shown) == 6
            assert ("SM activity" in shown) is profiled
            assert page.complaints == []


async def test_the_page_follows_the_drained_node_until_one_is_chosen(tmp_path: Path) -> None:
    async with opened(PretendHead(64), tmp_path) as page:
        assert await page.value(TITLE) == "gpu-0018"
        x, y = await page.middle_of('#decided button[data-id^="77aa"]')
        await page.mouse(x, y, click=True)
        await page.until(f"{TITLE} === 'gpu-0043'")
        assert await page.value("location.hash") == "#gpu-0043"
        follow = "document.getElementById('follow').getAttribute('aria-pressed')"
        assert await page.value(follow) == "false"
        await page.press("f")
        await page.until(f"{TITLE} === 'gpu-0018'")
        assert page.complaints == []


async def test_a_link_to_a_node_opens_it(tmp_path: Path) -> None:
    async with opened(PretendHead(64), tmp_path, "#gpu-0043") as page:
        assert await page.value(TITLE) == "gpu-0043"


async def test_the_grid_obeys_arrow_keys_and_says_where_it_is(tmp_path: Path) -> None:
    async with opened(PretendHead(64), tmp_path) as page:
        await page.value("document.getElementById('grid').focus()")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            await page.press(key)
        said = await text(page, "#spoken")
        assert said.startswith("gpu-0027: ")  # one down from 0018, then one rack to the right
        await page.press("Enter")
        await page.until(f"{TITLE} === 'gpu-0027'")
        assert page.complaints == []


async def test_versions_that_differ_are_listed_and_lead_to_their_node(tmp_path: Path) -> None:
    head = PretendHead(64)
    head.versions = skewed(head.now_ns)
    async with opened(head, tmp_path) as page:
        await page.until("document.querySelectorAll('#differing li').length === 3")
        told = await text(page, "#differing")
        assert "driver 535.261.03 on 2 nodes" in told
        assert "570.195.03 on 61 of 64" in told
        assert "nic firmware 28.36.1010 on gpu-0005" in told
        assert await text(page, "#versions-count") == "2 of 2 kinds"
        x, y = await page.middle_of("#differing li:first-child button")
        await page.mouse(x, y, click=True)
        await page.until(f"{TITLE} === 'gpu-0007'")
        assert page.complaints == []


async def test_a_fleet_of_one_version_shows_no_list_of_versions(tmp_path: Path) -> None:
    async with opened(PretendHead(64), tmp_path) as page:
        assert await page.value("document.getElementById('versions').hidden") is True
        assert page.complaints == []


async def test_a_node_is_found_by_part_of_its_name(tmp_path: Path) -> None:
    async with opened(PretendHead(64), tmp_path) as page:
        await page.press("/")
        for key in "0051":
            await page.press(key)
        await page.press("Enter")
        await page.until(f"{TITLE} === 'gpu-0051'")
        assert page.complaints == []


async def test_hovering_reads_out_every_gpu_at_one_time(tmp_path: Path) -> None:
    async with opened(PretendHead(64), tmp_path) as page:
        x, y = await page.middle_of(".chart svg")
        await page.mouse(x, y)
        await page.until("!document.querySelector('.readout').hidden")
        shown = await text(page, ".readout")
        assert "UTC" in shown
        assert "gpu0" in shown
        assert "gpu7" in shown
        assert "°C" in shown
        gx, gy = await page.middle_of("#grid")
        await page.mouse(gx - 60, gy)
        await page.until("!document.getElementById('tip').hidden")
        assert page.complaints == []


async def test_another_gpu_can_be_set_against_its_siblings(tmp_path: Path) -> None:
    async with opened(PretendHead(64), tmp_path) as page:
        x, y = await page.middle_of('[data-gpu="gpu6"]')
        await page.mouse(x, y, click=True)
        pressed = "document.querySelector('.chip[aria-pressed=true]').dataset.gpu"
        await page.until(f"{pressed} === 'gpu6'")
        assert "gpu6" in await page.value(
            "document.querySelector('.chart svg').getAttribute('aria-label')"
        )


async def test_ten_thousand_nodes_are_drawn_and_can_be_hit(tmp_path: Path) -> None:
    async with opened(PretendHead(10_000), tmp_path) as page:
        label = await page.value("document.getElementById('grid').getAttribute('aria-label')")
        assert label.startswith("10000 nodes")
        x, y = await page.middle_of("#grid")
        await page.mouse(x, y, click=True)
        await page.until(f"{TITLE} !== 'gpu-00018'")
        assert page.complaints == []


async def test_the_page_says_that_the_head_is_away_and_when_it_is_back(tmp_path: Path) -> None:
    head = PretendHead(64)
    real = head.fleet

    async def gone():  # type: ignore[no-untyped-def]
        raise RuntimeError("gone")

    async with opened(head, tmp_path) as page:
        head.fleet = gone  # type: ignore[method-assign]
        away = "document.getElementById('away')"
        await page.until(f"!{away}.hidden")
        said = await text(page, "#away")
        assert "does not answer" in said
        assert "What you see is from" in said
        assert await page.value(TITLE) == "gpu-0018"
        head.fleet = real  # type: ignore[method-assign]
        await page.until(f"{away}.hidden")
        assert await page.value("document.body.classList.contains('stale')") is False


async def test_hostile_text_stays_text(tmp_path: Path) -> None:
    head = PretendHead(64)
    hostile = "<img src=x onerror=\"document.title='owned'\">"
    head.change("gpu-0018", reason=hostile, slurm_state=hostile)
    async with opened(head, tmp_path) as page:
        assert hostile in await text(page, "#node-facts")
        assert await page.value("document.querySelectorAll('img[src=x]').length") == 0
        assert await page.value("document.title") == "tocsin"
        assert page.complaints == []


async def test_text_stands_out_from_its_ground_in_both_themes(tmp_path: Path) -> None:
    ratio = """(() => {
      const light = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((n) => { n /= 255;
        return n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
      const probe = document.createElement('i'); document.body.append(probe);
      const of = (name) => { probe.style.color = `var(--${name})`;
        return light(getComputedStyle(probe).color); };
      const found = [];
      for (const name of ['text', 'quiet', 'fact', 'risk', 'ours', 'good', 'accent'])
        for (const ground of ['panel', 'ground']) {
          const [a, b] = [of(name), of(ground)].sort((x, y) => y - x);
          found.push([name, ground, (a + 0.05) / (b + 0.05)]); }
      probe.remove(); return found; })()"""
    async with opened(PretendHead(64), tmp_path) as page:
        for theme in ("light", "dark"):
            await page.value(f"document.documentElement.dataset.theme = '{theme}'")
            faint = [row for row in await page.value(ratio) if row[2] < 4.5]
            assert faint == [], theme


async def test_a_drain_is_approved_with_two_clicks_and_denied_with_one(tmp_path: Path) -> None:
    head = PretendHead(64)
    async with opened_by("zoe", head, tmp_path) as page:
        yes = '[data-yes="77aa9d1c3b"]'
        await page.until(f"document.querySelector('{yes}') !== null")
        await page.mouse(*await page.middle_of(yes), click=True)
        await page.until(f"document.querySelector('{yes}').textContent === 'yes, drain gpu-0043'")
        assert head.words == []
        await page.mouse(*await page.middle_of(yes), click=True)
        await page.until("!document.getElementById('said').hidden")
        assert await text(page, "#said") == "77aa9d1c3b approved by page:zoe"
        no = '[data-no="77aa9d1c3b"]'
        await page.until(f"!document.querySelector('{no}').disabled")
        await page.mouse(*await page.middle_of(no), click=True)
        await page.until("document.getElementById('said').textContent.includes('denied')")
        assert head.words == [
            ("approve", "77aa9d1c3b", "page:zoe"),
            ("deny", "77aa9d1c3b", "page:zoe"),
        ]
        assert page.complaints == []


async def test_who_only_looks_is_offered_no_words(tmp_path: Path) -> None:
    async with opened(PretendHead(64), tmp_path) as page:
        await page.until("document.querySelector('.decision.ask') !== null")
        assert await page.value("document.querySelectorAll('.words').length") == 0


async def test_on_a_phone_the_header_is_short_and_nothing_runs_out_of_the_window(
    tmp_path: Path,
) -> None:
    async with opened(PretendHead(64), tmp_path) as page:
        await page.do(
            "Emulation.setDeviceMetricsOverride",
            width=390, height=844, deviceScaleFactor=1, mobile=True,
        )  # fmt: skip
        await page.until("window.innerWidth === 390")
        assert await page.value("document.documentElement.scrollWidth") == 390
        header = "document.querySelector('header').getBoundingClientRect().height"
        assert await page.value(header) < 270
        above = "document.getElementById('decisions').getBoundingClientRect().top"
        below = "document.getElementById('node').getBoundingClientRect().top"
        assert await page.value(above) < await page.value(below)
