"""The way to a head that shows, and asks for, certificates."""

import ssl
import subprocess
from pathlib import Path

import pytest

from daemon.agent.cycle import Agent
from daemon.gate.gateway import GatewayOptions
from daemon.gate.tokens import Tokens
from tests.daemon.agent.agents import (
    Counter,
    Running,
    numbers,
    options,
    until,
)
from tests.daemon.head_stub import Head


async def test_tls_with_an_own_authority(tmp_path: Path) -> None:
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"),
            *("-days", "2", "-subj", "/CN=head", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip("needs openssl to make a certificate")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    head = await Head(tmp_path / "store", tls=server).start()
    trusted = options(tmp_path, head.url, ca_file=tmp_path / "cert.pem")
    async with Running(Agent(trusted, [Counter()])):
        await until(lambda: len(numbers(head)) > 2)
    seen = len(numbers(head))
    async with Running(Agent(options(tmp_path, head.url), [Counter()])) as agent:
        await until(lambda: "certificate" in agent.reading().text("fault").lower())
    assert len(numbers(head)) == seen
    await head.stop()


def made_by(openssl: list[str], directory: Path) -> None:
    done = subprocess.run(["openssl", *openssl], cwd=directory, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("needs openssl to make certificates")


async def test_a_client_certificate_names_the_node(tmp_path: Path) -> None:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made_by(
        ["req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority"],
        tmp_path,
    )
    for name, extra in (
        ("head", "subjectAltName=IP:127.0.0.1"),
        ("n1", "basicConstraints=CA:FALSE"),
    ):
        made_by(
            [
                *("req", "-x509", *curve, "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout"),
                *(f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-addext", extra),
            ],
            tmp_path,
        )
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
    server.load_cert_chain(tmp_path / "head.pem", tmp_path / "head.key")
    server.verify_mode = ssl.CERT_OPTIONAL
    asked = GatewayOptions(client_certificates=True)
    head = await Head(tmp_path / "store", asked, Tokens(), tls=server).start()
    files = {"certificate_file": tmp_path / "n1.pem", "key_file": tmp_path / "n1.key"}
    trusted = options(tmp_path, head.url, ca_file=tmp_path / "ca.pem", **files)
    uplink = trusted.uplink.model_copy(update={"token_file": None})
    async with Running(Agent(trusted.model_copy(update={"uplink": uplink}), [Counter()])):
        await until(lambda: len(numbers(head)) > 2)
    # Without a certificate there is no token that would do either.
    async with Running(
        Agent(options(tmp_path, head.url, ca_file=tmp_path / "ca.pem"), [])
    ) as agent:
        await until(lambda: "refuses our token (401)" in agent.reading().text("fault"))
    await head.stop()
