"""Checks of the site's own: what they say, and what their own faults never say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from collectors.command import Limits, Runner
from collectors.node import checks
from collectors.node.checks import Checks, answer
from collectors.sample import Batch, Context, Source
from models.rules import Rules
from tests.collectors.contract import NODE, NOW_NS, SourceContract

SECOND_NS = 10**9


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(node=NODE, state_dir=tmp_path, root=tmp_path, now_ns=lambda: NOW_NS)


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def plugin(folder: Path, body: str) -> list[str]:
    """A plug-in as a real program."""
    file = folder / f"plugin{len(list(folder.iterdir()))}.py"
    file.write_text(f"import sys, time\n{body}\n")
    return [sys.executable, str(file)]


def make(context: Context, clock: Clock | None = None, **options: object) -> Checks:
    runner = Runner(Limits(term_seconds=0.2, kill_seconds=0.2))
    made = checks.Options.model_validate({"period_seconds": 60, **options})
    return Checks(made, context, runner, clock or Clock())


def events(batch: Batch) -> list[tuple[str, float | None, str]]:
    return [
        (one.tag("code"), one.number("severity"), one.text("text"))
        for one in batch.samples
        if one.measurement == "event"
    ]


class TestChecks(SourceContract):
    module = checks

    @pytest.fixture
    def healthy(self, context: Context, tmp_path: Path) -> Source:
        command = plugin(tmp_path, "print('MOUNT OK | used=93%')")
        return make(context, commands={"mount": {"command": command}})

    @pytest.fixture
    def unavailable(self, context: Context) -> Source:
        return make(context)


def test_the_first_line_and_its_figures_are_read() -> None:
    said = (
        "\nDISK WARNING - /scratch 91% | '/ used'=4100MB;;; time=12ms;1;2;0 n=7 bad=x9 t=-3c\nmore"
    )
    text, figures = answer(said)
    assert text == "DISK WARNING - /scratch 91%"
    assert figures == {"/ used": 4.1e9, "time": 0.012, "n": 7.0, "t": -3.0}
    assert answer("") == ("", {})
    assert answer("a\x1b[31mb\x00" * 9000)[0].isprintable()
    assert len(answer("x|" + " ".join(f"a{n}=1" for n in range(999)))[1]) == checks.FIGURES_MOST


def test_a_finding_is_told_once_and_its_end_once(context: Context, tmp_path: Path) -> None:
    state = tmp_path / "exit"
    command = plugin(
        tmp_path, f"code = int(open({str(state)!r}).read()); print('FAN', code); sys.exit(code)"
    )
    clock = Clock()
    source = make(context, clock, commands={"fan": {"command": command, "every_seconds": 60}})
    told = []
    for code in (0, 0, 1, 1, 2, 2, 0, 0):
        state.write_text(str(code))
        told.append(events(source.collect(NOW_NS)))
        clock.seconds += 60
    assert told == [
        [("fan", 0.0, "fan: FAN 0")], [], [("fan", 1.0, "fan: FAN 1")], [],
        [("fan", 2.0, "fan: FAN 2")], [], [("fan", 0.0, "fan: FAN 0")], [],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    ["time.sleep(60)", "sys.exit(3)", "import os; os.kill(os.getpid(), 9)", "sys.exit(127)"],
)
def test_a_fault_of_the_check_is_a_problem_and_no_word_of_the_node(
    context: Context, tmp_path: Path, body: str
) -> None:
    commands = {
        "bad": {"command": plugin(tmp_path, body), "deadline_seconds": 0.5},
        "good": {"command": plugin(tmp_path, "print('well')")},
    }
    batch = make(context, commands=commands).collect(NOW_NS)
    assert events(batch) == [("good", 0.0, "good: well")]
    assert [one.problem.partition(":")[0] for one in batch.problems] == ["bad"]
    states = {one.tag("check"): one.number("state") for one in batch.samples if one.tag("check")}
    assert states == {"bad": 3.0, "good": 0.0}
    missing = make(context, commands={"gone": {"command": ["/no/such/plugin"]}}).collect(NOW_NS)
    assert events(missing) == []


def test_what_no_time_was_left_for_comes_first_the_next_time(
    context: Context, tmp_path: Path
) -> None:
    clock = Clock()

    class Slow(Runner):
        def run(self, argv, **options):  # type: ignore[no-untyped-def]
            clock.seconds += 30
            return super().run(argv, **options)

    command = plugin(tmp_path, "pass")
    names = ("a", "b", "c")
    options = checks.Options.model_validate(
        {"commands": {name: {"command": command, "every_seconds": 1} for name in names}}
    )
    source = Checks(options, context, Slow(), clock)

    def ran() -> list[str]:
        batch = source.collect(NOW_NS)
        return [one.tag("check") for one in batch.samples if one.measurement == "check"]

    assert ran() == ["a", "b"]
    assert ran() == ["c", "a"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("active\nactive", ("services", 0.0, "services: well")),
        ("active\nfailed", ("services", 2.0, "services: chronyd.service is failed")),
        ("inactive\nreloading", ("services", 2.0, "services: sssd.service is inactive")),
        ("active", None),
        ("Failed to connect to bus", None),
    ],
)
def test_services_that_must_be_active(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str,
    told: tuple[str, float, str] | None,
) -> None:  # fmt: skip
    """systemctl is played by a program that prints what the real one does."""
    fake = tmp_path / "bin/systemctl"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\nprintf '{words}\n'\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=":")
    batch = make(context, services=["sssd.service", "chronyd.service"]).collect(NOW_NS)
    assert events(batch) == ([told] if told else [])
    assert bool(batch.problems) == (told is None)


@pytest.mark.parametrize(
    "options",
    [
        {"commands": {"Bad Name": {"command": ["true"]}}},
        {"commands": {"services": {"command": ["true"]}}},
        {"commands": {"x": {"command": []}}},
        {"commands": {"x": {"command": "true"}}},
        {"services": ["--root=/"]},
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        checks.Options.model_validate(options)


def test_a_failed_check_is_a_fact_that_only_tells_and_ends_with_it(
    context: Context, tmp_path: Path
) -> None:
    state = tmp_path / "exit"
    command = plugin(tmp_path, f"print('no /scratch'); sys.exit(int(open({str(state)!r}).read()))")
    clock = Clock()
    source = make(context, clock, commands={"mount": {"command": command, "every_seconds": 1}})
    rules = Rules()

    def facts(code: int, at_ns: int) -> list[tuple[str, str, str, str]]:
        state.write_text(str(code))
        clock.seconds += 60
        for one in source.collect(at_ns).samples:
            rules.observe(one, at_ns)
        found = rules.facts(at_ns, {NODE: 0})
        return [(one.rule, one.code, one.remedy.value, one.text) for one in found]

    assert facts(0, NOW_NS) == []
    told = ("check", "chk-mount", "alert", "mount: no /scratch")
    assert facts(2, NOW_NS + 60 * SECOND_NS) == [told]
    assert facts(2, NOW_NS + 120 * SECOND_NS) == [told]
    assert facts(0, NOW_NS + 180 * SECOND_NS) == []
