"""The configuration: every fault at once, in words that say what to do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import daemon.agent.config
import daemon.config
from daemon.agent.config import read_agent
from daemon.cli.main import main
from daemon.cli.token import add
from daemon.config import Config, read
from daemon.policy.decisions import Mode
from daemon.reference import page
from daemon.settings import ConfigError, load

ROOT = Path(__file__).parents[2]


def write(folder: Path, text: str) -> Path:
    file = folder / "tocsin.toml"
    file.write_text(text)
    return file


BAD = """
mode = "akt"
[head]
judge_seconds = "soon"
[policy]
drains_per_huor = 3
drained_share_max = 7
[store]
[agent.sources.nvml]
perid_seconds = 3
[sources.nvml]
period_seconds = 3
"""


def test_all_faults_are_told_at_once_with_line_path_and_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Config, write(tmp_path, BAD))
    lines = caught.value.lines()
    assert len(lines) == 6, lines
    text = "\n".join(lines)
    assert "line 2: mode" in text
    assert "'shadow', 'approve' or 'act'" in text
    assert "line 4: head.judge_seconds" in text
    assert 'line 6: policy.drains_per_huor: unknown key; did you mean "drains_per_hour"?' in text
    assert "line 7: policy.drained_share_max" in text
    assert 'agent.sources.nvml.perid_seconds: unknown key; did you mean "period_seconds"?' in text
    assert "sources: unknown key" in text
    assert "agent.sources" in text


def test_check_and_the_services_say_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(tmp_path, BAD))
    assert main(["check", "--config", file]) == 2
    words = capsys.readouterr().err
    assert "drains_per_huor" in words
    for verb in ("run", "agent"):
        assert main([verb, "--config", file]) == 2
        assert capsys.readouterr().err == words


def test_missing_files_are_faults_with_a_remedy(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        f'[head]\ntokens_file = "{tmp_path}/none"\ncertificate_file = "{tmp_path}"\n'
        f'[slurm]\nconf = "{tmp_path}/slurm.conf"\n',
    )
    with pytest.raises(ConfigError) as caught:
        read(file, "head")
    text = "\n".join(caught.value.lines())
    assert "head.tokens_file" in text
    assert "tocsin token NODE" in text
    assert "is a folder" in text
    assert "slurm.conf" in text
    assert "belong together" in text


def test_an_agent_without_a_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="token_file: is required"):
        read(write(tmp_path, '[agent]\nnode = "n1"\n'), "agent")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "not valid TOML"),
        (b"mode = ", "not valid TOML"),
        (b"a = 1\na = 2\n", "not valid TOML"),
        (b"x" * 1_000_001, "over 1 MB"),
        (b"[" * 100_000, "not valid TOML"),
    ],
)
def test_what_is_no_toml_is_told_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "tocsin.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        load(Config, file)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(Config, tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(Config, tmp_path)


@pytest.mark.parametrize("role", ["head", "agent"])
def test_a_file_that_nobody_named_and_that_is_not_there_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    for module in (daemon.config, daemon.agent.config):
        monkeypatch.setattr(module, "DEFAULT_FILE", tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="token") as caught:
        read(None, role)
    assert "none.toml" not in str(caught.value)
    with pytest.raises(ConfigError, match="token_file: is required") as caught:
        read_agent(None)
    assert "none.toml" not in str(caught.value)


def test_secrets_are_not_repeated(tmp_path: Path) -> None:
    file = write(tmp_path, '[agent.uplink]\ntoken = "abcdefghijklmnop"\n')
    with pytest.raises(ConfigError) as caught:
        load(Config, file)
    assert "abcdefghijklmnop" not in str(caught.value)


def test_a_secret_that_others_may_read_is_a_fault(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("n1 0123456789abcdef0123456789abcdef\n")
    tokens.chmod(0o644)
    file = write(tmp_path, f'[head]\ntokens_file = "{tokens}"\n')
    with pytest.raises(ConfigError, match="others may read it: chmod o="):
        read(file, "head")
    tokens.chmod(0o640)
    read(file, "head")


def test_tokens_made_side_by_side_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: add(file, f"n{number}", "t" * 32 + str(number)), range(16)))
    assert len(file.read_text().splitlines()) == 16
    assert file.stat().st_mode & 0o777 == 0o640
    assert file.stat().st_gid == tmp_path.stat().st_gid


def test_shadow_is_the_default() -> None:
    assert Config().mode is Mode.SHADOW


def test_the_reference_page_is_what_the_models_say() -> None:
    stored = (ROOT / "docs" / "configuration.md").read_text()
    assert stored == page(), "run: python -m daemon.reference > docs/configuration.md"
