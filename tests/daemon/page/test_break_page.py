"""What would open the operator's page to everybody, or make it stumble before the login."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.config import Config, faults_outside
from daemon.page.guard import login_right


def page_faults(**page: object) -> list[str]:
    config = Config.model_validate({"page": page})
    return [
        fault.text for fault in faults_outside(config, "head") if fault.path.startswith("page.")
    ]


def test_a_page_off_loopback_needs_a_password(tmp_path: Path) -> None:
    (only,) = page_faults(listen="0.0.0.0:8650")
    assert "is required: the page listens on 0.0.0.0" in only
    assert page_faults(listen="0.0.0.0:8650", enabled=False) == []
    assert page_faults(listen="[::1]:8650") == []
    file = tmp_path / "password"
    file.write_text("open sesame\n")
    file.chmod(0o600)
    assert page_faults(listen="0.0.0.0:8650", password_file=file) == []


def test_logins_of_peoples_own_open_it_and_a_bad_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "logins"
    file.write_text("zoe a-secret-of-her-own\n")
    file.chmod(0o600)
    assert page_faults(listen="0.0.0.0:8650", logins_file=file) == []
    file.write_text("zoe short\n")
    (only,) = page_faults(listen="0.0.0.0:8650", logins_file=file)
    assert "line 1: a token has at least 16 characters" in only
    assert "short" not in only
    file.chmod(0o644)
    assert any("others" in fault for fault in page_faults(listen="[::1]:8650", logins_file=file))


def test_an_empty_password_file_is_no_password(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("\n")
    file.chmod(0o600)
    (only,) = page_faults(listen="127.0.0.1:8650", password_file=file)
    assert "holds no password" in only


@pytest.mark.parametrize(
    "header", ["Bearer \udcff", "Basic \udcb2", "Basic \u00b2", "Bearer \ud800x"]
)
def test_a_login_that_is_no_text_is_wrong_and_no_fault_of_ours(header: str) -> None:
    assert not login_right(header, "secret")
