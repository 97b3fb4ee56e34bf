"""Alerts as e-mail, over a real SMTP session, with the faults that mail servers have."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from daemon.alerts.active import Alert
from daemon.alerts.mail import Mail, MailError, MailOptions, letter
from daemon.alerts.outbox import SendOptions
from daemon.alerts.tell import AlertOptions, Alerts, Notice, make_ways
from daemon.config import Config, faults_outside
from daemon.settings import ConfigError, validate
from tests.daemon.alerts.post import Post
from tests.daemon.alerts.test_webhook import running, until

T0_NS = 1_788_000_000 * 10**9
ALERT = Alert(
    "case/9f2c", 3, "n3 taken out of service: gpu3 fell off the bus (x79)",
    "tocsin:x79 gpu3 9f2c\nadvice: restart the node", "n3", T0_NS, "drained", ("n3",), "9f2c77",
)  # fmt: skip


def message(event: str = "new", **changes: Any) -> dict[str, Any]:
    return {**Notice(event, ALERT, T0_NS, T0_NS).message("c1"), **changes}


def mail(port: int, waits: list[float] | None = None, **options: Any) -> Mail:
    async def wait(seconds: float) -> None:
        if waits is not None:
            waits.append(seconds)
        await asyncio.sleep(0)

    given = MailOptions(**({"to": ("ops@example.org",), "port": port} | options))
    send = SendOptions(least_severity=given.least_severity)
    return Mail(given, send, monotonic=time.monotonic, wait=wait)


def certificate(folder: Path, name: str) -> Path:
    """Key and self-signed certificate of ``name`` in one PEM file."""
    key, made = folder / f"{name}.key", folder / f"{name}.crt"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
            f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out", str(made),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    file = folder / f"{name}.pem"
    file.write_bytes(key.read_bytes() + made.read_bytes())
    return file


async def test_an_alert_arrives_as_a_letter_that_says_all() -> None:
    post = Post()
    async with post.serving() as port:
        box = mail(port, sender="tocsin@head1", to=("ops@example.org", "ann@example.org"))
        async with running(box):
            box.offer(message())
            box.offer(message("resolved", id="other"))
            await until(lambda: box.sent == 2)
    first, second = post.taken
    assert first["Subject"] == (
        "[c1 critical] n3 taken out of service: gpu3 fell off the bus (x79)"
    )
    assert first["To"] == "ops@example.org, ann@example.org"
    assert "rcpt TO:<ann@example.org>" in post.said
    text = first.get_content()
    assert "advice: restart the node" in text
    assert "since 2026-08-29T10:40:00.000Z" in text
    assert first["Auto-Submitted"] == "auto-generated"  # no out-of-office answers it
    assert second["Subject"].strip().startswith("[c1 critical] resolved: n3")
    assert first["References"] == second["References"]  # one thread
    assert first["Message-ID"] != second["Message-ID"]


@pytest.mark.parametrize(
    "words", ["x\nBcc: all@example.org", "x\r\n\r\nhello", "grün\x00", "y" * 999]
)
def test_nothing_in_a_title_makes_a_header(words: str) -> None:
    said = letter(message(title=words), "tocsin@head1", ("ops@example.org",))
    assert "Bcc" not in said
    assert len(said["Subject"]) <= 150
    assert said["Subject"].isprintable()


async def test_a_server_that_is_busy_is_asked_again_and_one_that_refuses_blocks_nobody() -> None:
    post = Post(451, 250, 550)
    waits: list[float] = []
    async with post.serving() as port:
        box = mail(port, waits)
        async with running(box):
            for number in range(3):
                box.offer(message(id=f"a{number}"))
            await until(lambda: box.sent + box.dropped == 3)
    assert [one["Message-ID"][1:3] for one in post.taken] == ["a0", "a2"]
    assert (box.sent, box.dropped, len(waits)) == (2, 1, 1)


@pytest.mark.parametrize("fault", ["hang", "drip"])
async def test_a_server_that_hangs_or_drips_costs_a_deadline_and_is_asked_again(fault: str) -> None:
    post = Post(fault)
    async with post.serving() as port:
        box = mail(port, [], deadline_seconds=0.4)
        async with running(box):
            box.offer(message())
            await until(lambda: box.sent == 1)
    assert post.connections == 2


async def test_the_password_goes_over_tls_to_the_right_host_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret-word\n")
    options: dict[str, Any] = {
        "server": "localhost", "tls": "starttls", "user": "tocsin", "password_file": secret,
    }  # fmt: skip
    right, wrong = certificate(tmp_path, "localhost"), certificate(tmp_path, "elsewhere")
    good = Post(login="tocsin:s3cret-word", tls=right)
    async with good.serving() as port:
        box = mail(port, **options, ca_file=right)
        async with running(box):
            box.offer(message())
            await until(lambda: box.sent == 1)
    assert len(good.taken) == 1
    bad = Post(login="tocsin:s3cret-word", tls=wrong)
    async with bad.serving() as port:
        box = mail(port, [], **options, ca_file=wrong)
        async with running(box):
            box.offer(message())
            await until(lambda: box.failures > 1)
    assert bad.taken == []
    assert not any(one.startswith("AUTH") for one in bad.said)
    said = capsys.readouterr()
    assert "s3cret-word" not in said.out + said.err + box.trouble


async def test_a_wrong_password_is_asked_again_for_people_mend_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("old")
    post = Post(login="tocsin:new")
    waits: list[float] = []
    async with post.serving() as port:
        box = mail(port, waits, user="tocsin", password_file=secret)
        async with running(box):
            box.offer(message())
            await until(lambda: len(waits) >= 2)
    assert box.trouble == "SMTP 535"
    assert len(box.pending()) == 1


def test_mail_and_webhook_each_get_what_is_severe_enough_for_them(tmp_path: Path) -> None:
    url = tmp_path / "url"
    url.write_text("http://127.0.0.1:9/")
    options = AlertOptions(
        webhook_url_file=url, least_severity=0, mail=MailOptions(to=("ops@example.org",))
    )
    ways = make_ways(options, time.monotonic)
    alerts = Alerts(options, ways=ways, state_file=tmp_path / "alerts.json")
    low = Alert("case/1", 1, "t", "", "n1", T0_NS)
    alerts.update([ALERT, low], T0_NS)
    assert {way.name: len(way.pending()) for way in ways} == {"webhook": 2, "mail": 1}
    again = make_ways(options, time.monotonic)
    Alerts(options, ways=again, state_file=tmp_path / "alerts.json")
    assert {way.name: len(way.pending()) for way in again} == {"webhook": 2, "mail": 1}


def test_what_cannot_work_is_said_before_the_head_starts(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("word")
    secret.chmod(0o600)
    base = {"to": ["ops@example.org"], "user": "x", "password_file": str(secret)}

    def words(section: dict[str, Any]) -> str:
        config = validate(Config, {"alerts": {"mail": section}})
        return " ".join(str(one) for one in faults_outside(config, "head"))

    assert "in the clear" in words(base | {"server": "mail.example.org"})
    assert "in the clear" not in words(base)
    assert "password_file is required" in words({"to": ["a@example.org"], "user": "x"})
    assert "does not exist" in words(base | {"password_file": str(tmp_path / "none")})
    with pytest.raises(ConfigError):
        words({"to": ["a@example.org\nBcc: b@example.org"]})
    with pytest.raises(MailError) as caught:
        Mail(
            MailOptions(to=("a@b.org",), user="x", password_file=secret, server="far"),
            SendOptions(),
            monotonic=time.monotonic,
        )
    assert "word" not in str(caught.value).replace("password", "")
