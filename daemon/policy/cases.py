"""The words of the ledger: Case, its states, and LedgerView, what policy may know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from daemon.policy.names import Names


class State(StrEnum):
    """Where a case stands. The words are shown to people; keep them stable."""

    WATCH = "watch"  # recorded: an alert, a refusal, or shadow
    PROPOSED = "proposed"  # waits for a person's yes
    APPROVED = "approved"  # a person said yes
    DENIED = "denied"  # a person said no
    INTENT = "intent"  # written down, not yet seen in Slurm
    DRAINING = "draining"  # seen in Slurm; jobs still run
    DRAINED = "drained"  # seen in Slurm; empty
    TESTING = "testing"  # a proof runs on it
    RETURNED = "returned"  # back in service
    FOREIGN = "foreign"  # taken over: somebody else's reason stands there now
    ABANDONED = "abandoned"  # never written, or not to be written any more


# Stands before the name of who spoke at the page, where a login of their own vouches for them; on
# the operator's socket the kernel does.
VIA_PAGE = "page:"
# Behind the name: no user name holds a blank.
_AS = " (as "
_NO_LOGIN = " (login unknown)"


def person_of(user: str) -> str:
    """The person behind a recorded user, whichever way they spoke; empty where nobody can say.

    >>> person_of("page:zoe"), person_of("zoe"), person_of("zoe (as root)")
    ('zoe', 'zoe', 'zoe')
    """
    if user.endswith(_NO_LOGIN):
        return ""
    return user.removeprefix(VIA_PAGE).partition(_AS)[0]


def as_other(login: str, user: str) -> str:
    """How somebody is recorded who logged in as ``login`` and speaks as ``user`` (sudo, su)."""
    return f"{login}{_AS}{user})"


def without_login(user: str) -> str:
    """How a ``user`` is recorded whom many can become, where the kernel knows no login."""
    return f"{user}{_NO_LOGIN}"


# In these states the node is held out of service by us, as far as we know.
HELD = frozenset({State.INTENT, State.DRAINING, State.DRAINED, State.TESTING})
# A case that ended like this is never acted on again.
ENDED = frozenset({State.RETURNED, State.FOREIGN})


@dataclass(frozen=True, slots=True)
class Case:
    """One cause on one node, through its life. Times are UTC ns, 0 where it never came to it.

    ``reason`` is the text written to Slurm, exactly; ``seen_ns`` when a reading of Slurm last
    showed it; ``boot_time_ns`` the node's boot when it was drained; ``user`` who spoke last.
    """

    id: str
    node: str
    rule: str
    code: str
    device: str
    voice: str
    state: State
    onset_ns: int
    created_ns: int
    updated_ns: int
    reason: str = ""
    intent_ns: int = 0
    acknowledged_ns: int = 0
    seen_ns: int = 0
    ended_ns: int = 0
    expires_ns: int = 0
    boot_time_ns: int = 0
    user: str = ""
    return_by: str = ""
    text: str = ""
    verdict: bool | None = None

    @property
    def held(self) -> bool:
        """Whether it holds its node out of service."""
        return self.state in HELD


# How long an ended case stays in the view: its cause may be seen again for a while.
CASE_KEEP_NS = 30 * 86_400 * 1_000_000_000
# What ``sinfo -R`` tells people to type; the case's name, one or more digits of its id, follows.
TELLS_NAME = "tocsin explain "


def called(name: str, cases: Sequence[Case]) -> list[Case]:
    """Those of ``cases``, newest first, that people mean by ``name``, where ids begin alike.

    A reason gives its case a name that no other case of its time has. One that was over for long
    may have had the same; what is open, or newer, is meant.
    """
    named = [case for case in cases if case.reason.endswith(TELLS_NAME + name)]
    open_ = (State.PROPOSED, State.APPROVED)
    return [
        case
        for case in named
        if case.held or case.state in open_ or named[0].updated_ns - case.updated_ns <= CASE_KEEP_NS
    ]


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What policy may know of the ledger: plain data, of one moment.

    ``held``: node to the case that holds it. ``cases``: by id, all that are open and those that
    ended of late; those that are only told of (state ``watch``) where they are of a likelihood.
    ``names``: of every case that people may have met. ``drains_ns``: when drains were
    made, newest last, over the longest window that a limit looks at. ``returned_ns`` and
    ``returned_reasons``: when a node last came back, and from a drain for which reason, ours or
    somebody else's. ``breaker_closed_ns``: what was before it no longer opens the breaker.
    ``locked``: node to who locked it. ``breaker``: why it is open, or empty. ``anew_ns``: since
    when the history of a node (``n1``) or of a part of it (``n1/gpu3``) counts, because it was
    replaced.
    """

    held: Mapping[str, Case] = field(default_factory=dict)
    cases: Mapping[str, Case] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    drains_ns: tuple[int, ...] = ()
    drains_of: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    returned_ns: Mapping[str, int] = field(default_factory=dict)
    returned_reasons: Mapping[str, str] = field(default_factory=dict)
    locked: Mapping[str, str] = field(default_factory=dict)
    breaker: str = ""
    breaker_closed_ns: int = 0
    wrong_verdicts_ns: tuple[int, ...] = ()
    anew_ns: Mapping[str, int] = field(default_factory=dict)
    onsets: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    # Each decision asks for those of its part: it must not look through all of them.
    _of_part: dict[tuple[str, str], list[Case]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        of_part: dict[tuple[str, str], list[Case]] = {}
        for case in self.cases.values():
            of_part.setdefault((case.node, case.device), []).append(case)
        object.__setattr__(self, "_of_part", of_part)

    def cases_of(self, node: str, device: str) -> Sequence[Case]:
        """Those of ``cases`` that one part of a node had."""
        return self._of_part.get((node, device), ())
