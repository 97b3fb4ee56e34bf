"""What people say to tocsin, over a Slurm in memory: yes, no, resume, lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from collectors.slurm.nodes import Nodes, NodeState
from daemon.drains.drains import RefusedError, Returned
from daemon.drains.ledger import UnknownCaseError
from daemon.operators import OperatorWords
from daemon.policy.cases import State
from daemon.policy.decide import decide
from daemon.policy.decisions import Action, Guard, Mode
from daemon.policy.limits import Limits
from daemon.slurm.adapter import Check, Outcome
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.drains.houses import house, node, restarted, slurm
from tests.daemon.worlds import GENEROUS, START_NS, Clock, House, cluster, lost


def test_resume_lifts_our_own_drain_and_the_cause_is_spent() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    made.clock.pass_seconds(10)
    returned = made.drains.resume("n3", "ann", made.now_ns())
    assert returned.node == "n3"
    assert not node(made, "n3").drain
    decision = made.cycle()[0]
    assert decision.guard is Guard.SPENT
    assert not node(made, "n3").drain
    entry = next(e for e in made.ledger.audit(node="n3") if e.verb == "returned")
    assert entry.user == "ann"


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        ("drain", "ops", "not tocsin's"),
        ("", "", "nothing to lift"),
        ("down", "DIMM", "not tocsin's"),
    ],
)
def test_resume_refuses_what_is_not_ours(state: str, reason: str, said: str) -> None:
    made = house()
    if state:
        slurm(made).set("n1", state=state, reason=reason)
    before = node(made, "n1")
    with pytest.raises(RefusedError, match=said):
        made.drains.resume("n1", "ann", made.now_ns())
    assert node(made, "n1") == before
    with pytest.raises(RefusedError, match="no node"):
        made.drains.resume("n99", "ann", made.now_ns())


def test_an_approved_proposal_drains_and_tells_who_approved() -> None:
    made = house(Mode.APPROVE)
    made.facts = [lost("n3")]
    proposal = made.cycle()[0]
    assert proposal.guard is Guard.APPROVAL
    assert [case.id for case in made.ledger.waiting()] == [proposal.id]
    made.drains.approve(proposal.short_id, "ann", made.now_ns())
    assert made.cycle()[0].action is Action.DRAIN
    assert node(made, "n3").drain
    assert ("ann", "approve") in [(e.user, e.verb) for e in made.ledger.audit(node="n3")]


def test_two_people_may_be_needed_and_one_counts_once() -> None:
    limits = Limits.model_validate({**GENEROUS.model_dump(), "approvals_needed": 2})
    made = house(Mode.APPROVE, limits)
    made.facts = [lost("n3")]
    proposal = made.cycle()[0]
    assert made.drains.approve(proposal.id, "ann", made.now_ns()).state is State.PROPOSED
    for ann in ("ann", "page:ann"):  # on the socket, and at the page
        with pytest.raises(RefusedError, match="ann said yes already"):
            made.drains.approve(proposal.id, ann, made.now_ns())
    assert made.cycle()[0].guard is Guard.APPROVAL
    assert made.drains.approve(proposal.id, "bob", made.now_ns()).state is State.APPROVED
    assert made.cycle()[0].action is Action.DRAIN


def test_a_yes_to_a_proposal_that_expired_or_was_denied_counts_no_more() -> None:
    limits = Limits.model_validate({**GENEROUS.model_dump(), "approvals_needed": 2})
    made = house(Mode.APPROVE, limits)
    made.facts = [lost("n3")]
    proposal = made.cycle()[0]
    made.drains.approve(proposal.id, "ann", made.now_ns())
    made.clock.pass_seconds(86_401)
    made.cycle()  # nobody else answered
    made.clock.pass_seconds(10)
    made.cycle()  # it is asked again
    assert [case.id for case in made.ledger.waiting()] == [proposal.id]
    assert made.drains.approve(proposal.id, "bob", made.now_ns()).state is State.PROPOSED
    assert made.drains.approve(proposal.id, "ann", made.now_ns()).state is State.APPROVED
    made.drains.deny(proposal.id, "zoe", made.now_ns())
    assert made.drains.approve(proposal.id, "ann", made.now_ns()).state is State.DENIED
    assert made.drains.approve(proposal.id, "bob", made.now_ns()).state is State.APPROVED


def test_a_yes_that_is_not_used_in_time_expires_too() -> None:
    made = house(Mode.APPROVE)
    made.facts = [lost("n3")]
    proposal = made.cycle()[0]
    made.drains.approve(proposal.id, "ann", made.now_ns())
    made.facts = []
    made.clock.pass_seconds(86_401)
    made.cycle()
    assert made.ledger.find(proposal.id).state is State.WATCH
    made.facts = [lost("n3")]
    assert made.cycle()[0].guard is Guard.APPROVAL
    assert not made.adapter.nodes()["n3"].drain


def test_a_denied_proposal_never_drains_and_a_new_cause_is_asked_again() -> None:
    made = house(Mode.APPROVE)
    made.facts = [lost("n3")]
    proposal = made.cycle()[0]
    made.drains.deny(proposal.id, "ann", made.now_ns())
    refused = made.cycle()[0]
    assert refused.guard is Guard.DENIED
    assert refused.guard_text.startswith("ann said no to this case")
    made.facts = [lost("n3", onset_ns=START_NS + 5)]
    assert made.cycle()[0].guard is Guard.APPROVAL


def test_a_proposal_that_nobody_answers_expires_and_is_made_again() -> None:
    made = house(Mode.APPROVE)
    made.facts = [lost("n3")]
    proposal = made.cycle()[0]
    made.facts = []
    made.clock.pass_seconds(86_401)
    made.cycle()
    assert made.ledger.waiting() == []
    with pytest.raises(RefusedError):
        made.drains.approve(proposal.id, "ann", made.now_ns())


def test_words_about_nothing_are_refused() -> None:
    made = house()
    for word in ("abcd", "", "xyz!", "%"):
        with pytest.raises(UnknownCaseError):
            made.drains.approve(word, "ann", made.now_ns())
    with pytest.raises(RefusedError):
        made.drains.unlock("n1", "ann", made.now_ns())
    with pytest.raises(RefusedError):
        made.drains.close_breaker("ann", made.now_ns())


def test_a_locked_node_is_left_alone_until_it_is_unlocked() -> None:
    made = house()
    made.drains.lock("n3", "ann", made.now_ns(), "under test")
    made.facts = [lost("n3")]
    assert made.cycle()[0].guard is Guard.LOCKED
    made.drains.unlock("n3", "ann", made.now_ns())
    assert made.cycle()[0].action is Action.DRAIN


def test_a_yes_after_a_no_counts_also_when_the_proposals_time_is_over() -> None:
    made = house(Mode.APPROVE, GENEROUS.model_copy(update={"approval_seconds": 600}))
    made.facts = [lost("n3")]
    case = made.cycle()[0].id
    made.drains.deny(case, "ann", made.clock.pass_seconds(10))
    made.drains.approve(case, "bob", made.clock.pass_seconds(3600))
    # For a moment Slurm's reading is too old: the yes must still be there afterwards.
    now_ns = made.clock.pass_seconds(5)
    old = made.situation(made.adapter.nodes(), age_seconds=1e6)
    view = made.ledger.view(now_ns)
    made.drains.carry_out(decide(old, made.limits, view, made.mode, now_ns), now_ns)
    assert made.ledger.find(case).state is State.APPROVED
    made.clock.pass_seconds(5)
    made.cycle()
    assert node(made, "n3").drain
    assert "expire" not in [one.verb for one in made.ledger.audit(subject=case)]


@pytest.mark.parametrize("state", [State.PROPOSED, State.DENIED])
async def test_a_first_of_two_yeses_is_not_told_as_approved(state: State) -> None:
    made = house(Mode.APPROVE, GENEROUS.model_copy(update={"approvals_needed": 2}))
    made.facts = [lost("n3")]
    case = made.cycle()[0].id
    if state is State.DENIED:
        made.drains.deny(case, "zoe", made.clock.pass_seconds(5))

    class Stub:
        """As much of a head as a word needs."""

        drains, clock, decisions = made.drains, made.clock, ()

        async def by_hand(self, function, *arguments):  # type: ignore[no-untyped-def]
            return function(*arguments)

        def look_at_ledger(self) -> None: ...
        def wake(self) -> None: ...

    words = OperatorWords(Stub())  # type: ignore[arg-type]
    assert "another person's is needed too" in await words.approve(case, "ann")
    assert "approved, but its cause is not seen now" in await words.approve(case, "bob")


class Counted(SimulatedSlurm):
    """Counts requests: one a call, whatever it names."""

    def __init__(self, count: int, now_ns: Callable[[], int]) -> None:
        super().__init__(cluster(count).values(), now_ns)
        self.asked: list[str] = []

    def nodes(self, names: Iterable[str] | None = None) -> Nodes:
        self.asked.append("look")
        return super().nodes(names)

    def undrain(self, names: Iterable[str], check: Check) -> Outcome:
        names = list(names)
        self.asked.append(f"undrain {','.join(sorted(names))}")
        return super().undrain(names, check)


def held(count: int) -> tuple[House, Counted]:
    clock = Clock()
    counted = Counted(count, clock.now_ns)
    made = House(counted, limits=GENEROUS.model_copy(update={"common_cause_nodes": 1000}))
    made.clock, made.now_ns = clock, clock.now_ns
    made.facts = [lost(f"n{i}") for i in range(1, count + 1)]
    made.cycle()
    made.clock.pass_seconds(10)
    counted.asked.clear()
    assert len(made.drains.take_shown()) == count
    return made, counted


def test_several_drains_are_lifted_in_one_write_and_each_refusal_is_its_own() -> None:
    made, counted = held(5)
    counted.set("n2", user="zoe", state="drain", reason="zoe: mine now")
    asked = {"n1": "ann", "n2": "ann", "n3": "bob", "n9": "bob"}
    came = made.drains.resume_all(asked, made.now_ns())
    assert [one for one in counted.asked if one.startswith("undrain")] == ["undrain n1,n2,n3"]
    assert isinstance(came["n1"], Returned)
    assert isinstance(came["n3"], Returned)
    assert "not tocsin's" in str(came["n2"])
    assert "no node n9" in str(came["n9"])
    shown = counted.nodes()
    assert [name for name, one in shown.items() if one.drain] == ["n2", "n4", "n5"]
    assert shown["n2"].reason == "zoe: mine now"
    told = {one.node: one.user for one in made.ledger.audit() if one.verb == "returned"}
    assert told == {"n1": "ann", "n3": "bob"}


def test_a_write_that_fails_keeps_all_drains_and_remembers_no_word() -> None:
    made, counted = held(3)
    counted.away = "stopped"
    came = made.drains.resume_all({"n1": "ann", "n2": "ann"}, made.now_ns())
    assert all("stays drained" in str(one) for one in came.values())
    counted.away = ""
    made.cycle()
    assert all(one.drain for one in counted.nodes().values())


def test_returns_that_a_kill_left_are_finished_in_one_write() -> None:
    made, counted = held(4)

    def die(names: object, check: Check) -> Outcome:
        raise KeyboardInterrupt

    counted.undrain, lift = die, counted.undrain  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        made.drains.resume_all({"n1": "ann", "n2": "bob"}, made.now_ns())
    counted.undrain = lift  # type: ignore[method-assign]
    new = restarted(made)
    new.cycle()
    assert counted.asked.count("undrain n1,n2") == 1
    assert {one.node for one in new.ledger.held()} == {"n3", "n4"}


async def test_words_that_come_while_a_lift_is_under_way_are_lifted_together() -> None:
    made, counted = held(6)
    lock = asyncio.Lock()
    shown: dict[str, NodeState] = {}

    class Desk:
        def saw(self, fresh: Mapping[str, NodeState]) -> None:
            shown.update(fresh)

    class Stub:
        """As much of a head as a word needs; its hand is busy while others speak."""

        drains, clock, desk, nodes = made.drains, made.clock, Desk(), made.adapter.nodes()

        async def by_hand(self, function, *arguments):  # type: ignore[no-untyped-def]
            async with lock:
                await asyncio.sleep(0)
                return function(*arguments)

        async def returned(self, nodes: Sequence[Returned]) -> None:
            spent.extend(one.node for one in nodes)

        def look_at_ledger(self) -> None: ...

    spent: list[str] = []
    words = OperatorWords(Stub())  # type: ignore[arg-type]
    counted.set("n6", user="zoe", state="drain", reason="zoe: mine now")
    names = ["n1", "n2", "n3", "n4", "n5", "n5", "n6"]
    said = await asyncio.gather(
        *(words.resume(name, "ann") for name in names), return_exceptions=True
    )
    writes = [one for one in counted.asked if one.startswith("undrain")]
    assert len(writes) <= 3, "not one a node"
    assert said[:5] == [f"n{i} is back in service" for i in range(1, 6)]
    assert "nothing to lift" in str(said[5])
    assert "not tocsin's" in str(said[6])
    assert sorted(spent) == ["n1", "n2", "n3", "n4", "n5"]
    assert not any(one.drain for one in shown.values())
    assert set(shown) == set(spent)


async def test_a_word_is_carried_out_also_where_its_speaker_waits_no_longer() -> None:
    """Slurm holds the hand for longer than an answer may take: no word is dropped for it, and none
    waits for somebody else's to be done behind its speaker's back."""
    made, counted = held(2)
    free = asyncio.Event()

    class Desk:
        def saw(self, fresh: Mapping[str, NodeState]) -> None: ...

    class Stub:
        """As much of a head as a word needs; its hand is busy until ``free``."""

        drains, clock, desk, nodes = made.drains, made.clock, Desk(), made.adapter.nodes()

        async def by_hand(self, function, *arguments):  # type: ignore[no-untyped-def]
            await free.wait()
            return function(*arguments)

        async def returned(self, nodes: Sequence[Returned]) -> None:
            spent.extend(one.node for one in nodes)

        def look_at_ledger(self) -> None: ...

    spent: list[str] = []
    words = OperatorWords(Stub())  # type: ignore[arg-type]
    said = [asyncio.create_task(word) for word in (words.resume("n1", "ann"),
            words.lock("n2", "ann", True))]  # fmt: skip
    await asyncio.sleep(0)
    for one in said:
        one.cancel()
    _, late = await asyncio.wait(said, timeout=60)
    assert not late
    free.set()
    async with asyncio.timeout(60):
        while asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.sleep(0)
    assert [name for name, one in counted.nodes().items() if one.drain] == ["n2"]
    assert spent == ["n1"]
    assert made.ledger.locks() == {"n2": "ann"}
