"""The page behind a certificate of its own."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import aiohttp
import pytest

from daemon.assemble import open_ears, page_tls
from daemon.clock import SystemClock
from daemon.config import Config, faults_outside
from daemon.demo.source import simulated_source
from daemon.gate.tokens import parse_tokens
from daemon.head import Head
from daemon.listen import ListenError, Listeners
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.alerts.test_mail import certificate
from tests.daemon.worlds import idle


def config(folder: Path, **page: object) -> Config:
    head = {
        "state_dir": folder / "state", "listen": "127.0.0.1:0", "socket": folder / "s",
        "operators_group": "",
    }  # fmt: skip
    listens = {"listen": "127.0.0.1:0", **page}
    return Config.model_validate({"head": head, "page": listens, "store": {"reserve_bytes": 0}})


async def test_the_page_speaks_tls_and_nothing_else_with_a_certificate(tmp_path: Path) -> None:
    pem = certificate(tmp_path, "localhost")
    password = tmp_path / "password"
    password.write_text("right")
    made = config(tmp_path, certificate_file=pem, key_file=pem, password_file=password)
    slurm = SimulatedSlurm([idle("n1")], time.time_ns)
    source = simulated_source(slurm, 3600.0, tmp_path / "slurm")
    head, listeners = Head(made, clock=SystemClock(), adapter=slurm, slurm=source), Listeners()
    await head.start()
    _, page = await open_ears(head, made, parse_tokens(""), listeners)
    assert page is not None
    trusts = ssl.create_default_context(cafile=pem)
    login = aiohttp.BasicAuth("any", "right")
    try:
        async with aiohttp.ClientSession() as session:
            url = f"localhost:{page.port}/api/v1/status"
            async with session.get(f"https://{url}", ssl=trusts, auth=login) as answer:
                assert (await answer.json())["nodes"] == 1
            async with session.get(f"https://{url}", ssl=trusts) as answer:
                assert answer.status == 401
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://{url}", auth=login)
    finally:
        await listeners.close()
        await head.stop()


def test_what_is_no_certificate_and_its_key_is_said(tmp_path: Path) -> None:
    pem = certificate(tmp_path, "localhost")
    other = certificate(tmp_path, "elsewhere")
    for key in (other, tmp_path / "s"):
        (tmp_path / "s").write_text("no key")
        with pytest.raises(
            ListenError, match=r"page not opened: .* are no certificate and its key"
        ):
            page_tls(config(tmp_path, certificate_file=pem, key_file=key))
    told = " ".join(map(str, faults_outside(config(tmp_path, certificate_file=pem), "head")))
    assert "page.key_file: certificate_file and key_file belong together" in told
