"""A headless browser that tests can click and type in, over its own debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
_DEADLINE_SECONDS = 40.0


class Tab:
    """One page. ``complaints`` holds every uncaught error and console error so far."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []

    async def read(self) -> None:
        """Takes in what the browser says, until it is gone."""
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                self._waiting.pop(said["id"]).set_result(said)
            elif said["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))
            elif said["method"] == "Runtime.consoleAPICalled":
                self.complaints.append(str(said["params"]["args"]))
            elif said["method"] == "Log.entryAdded":
                self.complaints.append(said["params"]["entry"]["text"])

    async def do(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol."""
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        await self._socket.send_json({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(future, _DEADLINE_SECONDS)
        assert "error" not in answer, answer
        return answer["result"]  # type: ignore[no-any-return]

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        result = await self.do("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Waits until a JavaScript expression is true."""
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while not (found := await self.value(expression)):
                await asyncio.sleep(0.05)
        return found

    async def press(self, key: str) -> None:
        """One key, down and up."""
        text = {"text": key} if len(key) == 1 else {}
        if key == "Enter":
            text = {"text": "\r"}
        await self.do("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        await self.do("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def mouse(self, x: float, y: float, *, click: bool = False) -> None:
        """Moves the mouse; clicks there."""
        await self.do("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            await self.do(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )

    async def picture(self, file: Path, width: int = 1600, height: int = 1000) -> None:
        """A PNG of the page, as a window of that size shows it."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.do("Emulation.setDeviceMetricsOverride", **size)
        await asyncio.sleep(4)
        shot = await self.do("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(shot["data"]))

    async def middle_of(self, selector: str) -> tuple[float, float]:
        """Where an element stands in the window."""
        box = await self.value(
            f"(() => {{ const r = document.querySelector({selector!r}).getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        return box[0], box[1]


@contextlib.asynccontextmanager
async def tab(url: str, profile: Path, size: tuple[int, int] = (1600, 1000)) -> AsyncIterator[Tab]:
    """The page at ``url`` in a browser of its own."""
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
        f"--window-size={size[0]},{size[1]}",
        "--remote-debugging-port=0",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port = (await _appears(profile / "DevToolsActivePort")).splitlines()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [page for page in await answer.json() if page["type"] == "page"]
            async with session.ws_connect(
                pages[0]["webSocketDebuggerUrl"], max_msg_size=0
            ) as socket:
                page = Tab(socket)
                reader = asyncio.create_task(page.read())
                for domain in ("Page", "Runtime", "Log"):
                    await page.do(f"{domain}.enable")
                await page.do("Page.navigate", url=url)
                try:
                    yield page
                finally:
                    reader.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _appears(file: Path) -> str:
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while True:
            with contextlib.suppress(FileNotFoundError):
                text = file.read_text()
                if text.count("\n") >= 1:
                    return text
            await asyncio.sleep(0.05)
