"""Who speaks at the operator's socket: the person who logged in, whatever user they became."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from daemon.drains.drains import RefusedError
from daemon.page.app import operator_app
from daemon.page.peer import Peer, login_uid_of
from daemon.policy.cases import State, person_of
from daemon.policy.decisions import Mode
from tests.daemon.drains.houses import house
from tests.daemon.page.pretend import PretendHead
from tests.daemon.worlds import GENEROUS, lost

DAEMON, BIN = (pwd.getpwnam(name).pw_uid for name in ("daemon", "bin"))
# A process that logged in as one user, became another, and speaks.
SPEAKS = """
import http.client, os, socket, sys
path, login, uid = sys.argv[1], sys.argv[2], int(sys.argv[3])
if login:
    try:
        open("/proc/self/loginuid", "w").write(login)
    except OSError:
        sys.exit(77)
os.setresuid(uid, uid, uid)
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(path)
connection.request("POST", "/api/v1/approve/77aa", b"")
sys.exit(0 if connection.getresponse().status == 200 else 1)
"""


async def spoken(folder: Path, login: int | None, uid: int) -> str:
    """How the head records somebody who logged in as ``login`` and speaks as ``uid``."""
    head = PretendHead(64)
    path = folder / "tocsin.sock"
    runner = web.AppRunner(operator_app(head, grp.getgrgid(os.getgid()).gr_name))
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    path.chmod(0o666)
    folder.chmod(0o755)
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SPEAKS, str(path), "" if login is None else str(login), str(uid)
        )
        code = await asyncio.wait_for(child.wait(), 60)
    finally:
        await runner.cleanup()
        path.unlink(missing_ok=True)
    if code == 77:
        pytest.skip("this kernel or container lets nobody set a login (audit)")
    assert code == 0
    ((verb, _, user),) = head.words
    assert verb == "approve"
    return user


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter: pytest's own is closed to them."""
    made = Path(tempfile.mkdtemp(prefix="tocsin-who-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.mark.skipif(os.getuid() != 0, reason="becoming somebody else needs root")
async def test_who_logged_in_is_recorded_whatever_user_they_became(folder: Path) -> None:
    assert await spoken(folder, DAEMON, DAEMON) == "daemon"
    assert await spoken(folder, DAEMON, 0) == "daemon (as root)"
    assert await spoken(folder, DAEMON, BIN) == "daemon (as bin)"
    assert await spoken(folder, 0, 0) == "root"
    assert await spoken(folder, 60_123, 0) == "uid 60123 (as root)"


@pytest.mark.skipif(os.getuid() != 0, reason="becoming somebody else needs root")
async def test_root_without_a_login_is_nobody_in_particular(folder: Path) -> None:
    if Path("/proc/self/loginuid").read_text() != str(2**32 - 1):
        pytest.skip("these tests were started by somebody who logged in")
    assert await spoken(folder, None, 0) == "root (login unknown)"
    assert await spoken(folder, None, DAEMON) == "daemon"


def test_a_number_that_another_users_process_got_since_vouches_for_nobody(tmp_path: Path) -> None:
    place = tmp_path / "7"
    place.mkdir()
    assert login_uid_of(7, 1000, tmp_path) is None
    (place / "status").write_text("Name:\tx\nUid:\t1000\t1000\t1000\t1000\n")
    for text in ("", "4294967295", "seven", "-1x"):
        (place / "loginuid").write_text(text)
        assert login_uid_of(7, 1000, tmp_path) is None
    (place / "loginuid").write_text("1000")
    assert login_uid_of(7, 1000, tmp_path) == 1000
    assert login_uid_of(7, 0, tmp_path) is None
    assert Peer(7, 0, 0, "root", None).spoken == "root (login unknown)"


@pytest.mark.parametrize("second", ["ann (as root)", "ann (as bob)", "page:ann", "ann"])
def test_one_person_never_counts_as_two(second: str) -> None:
    made = house(Mode.APPROVE, GENEROUS.model_copy(update={"approvals_needed": 2}))
    made.facts = [lost("n3")]
    case = made.cycle()[0].id
    assert made.drains.approve(case, "ann", made.now_ns()).state is State.PROPOSED
    with pytest.raises(RefusedError, match="ann said yes already"):
        made.drains.approve(case, second, made.now_ns())
    assert made.drains.approve(case, "bob (as root)", made.now_ns()).state is State.APPROVED


def test_somebody_without_a_known_login_is_not_the_second_of_two() -> None:
    made = house(Mode.APPROVE, GENEROUS.model_copy(update={"approvals_needed": 2}))
    made.facts = [lost("n3")]
    case = made.cycle()[0].id
    nobody = "root (login unknown)"
    with pytest.raises(RefusedError, match="Speak as yourself, without sudo"):
        made.drains.approve(case, nobody, made.now_ns())
    made.drains.approve(case, "ann", made.now_ns())
    with pytest.raises(RefusedError, match="it may be somebody who said yes already"):
        made.drains.approve(case, nobody, made.now_ns())
    assert made.ledger.find(case).state is State.PROPOSED
    assert person_of(nobody) == ""
    # Where one yes is enough, anybody who may operate says it, and is recorded so.
    alone = house(Mode.APPROVE)
    alone.facts = [lost("n3")]
    case = alone.cycle()[0].id
    alone.drains.approve(case, nobody, alone.now_ns())
    found = alone.ledger.find(case)
    assert (found.state, found.user) == (State.APPROVED, nobody)
