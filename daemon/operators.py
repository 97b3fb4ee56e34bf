"""An operator's word to a head: each goes through the one thread that writes ledger and Slurm."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar, TypeVarTuple

import structlog

from collectors.slurm.nodes import NodeState
from daemon.drains.drains import RefusedError, Returned
from daemon.drains.ledger import UnknownCaseError
from daemon.head import Head
from daemon.page.view import Refused, UnknownSubject
from daemon.slurm.adapter import SlurmError
from daemon.words import word_samples

log = structlog.get_logger("tocsin.operators")

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
Said = ParamSpec("Said")
_Verb = Callable[Concatenate["OperatorWords", Said], Coroutine[Any, Any, str]]

_under_way: set[asyncio.Task[Any]] = set()


async def to_the_end(word: Coroutine[Any, Any, Result]) -> Result:
    """What ``word`` comes to. It goes on where its speaker waits no longer.

    Slurm may hold the hand's thread for longer than an answer may take. The speaker is told then
    that the head goes on working; a word that was dropped, or half of it, would make that a lie.
    """
    task = asyncio.create_task(word)
    _under_way.add(task)
    task.add_done_callback(_over)
    return await asyncio.shield(task)


def _over(task: asyncio.Task[Any]) -> None:
    _under_way.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.info("word_came_to_nothing", why=str(error))


def _lasting(verb: _Verb[Said]) -> _Verb[Said]:
    async def said(self: OperatorWords, /, *args: Said.args, **kwargs: Said.kwargs) -> str:
        return await to_the_end(verb(self, *args, **kwargs))

    update_wrapper(said, verb)
    return said


@dataclass(slots=True)
class _Resume:
    """A person wants a node back; ``came``: what it came to."""

    node: str
    user: str
    came: Returned | RefusedError | None = None


class OperatorWords:
    """The verbs of ``HeadView``: each answers a sentence, or raises Refused or UnknownSubject."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._resumes: deque[_Resume] = deque()

    @_lasting
    async def approve(self, case: str, user: str) -> str:
        """Yes to a waiting drain; judged and written at once."""
        found = await self._word(self._head.drains.approve, case, user)
        self._head.wake()
        if found.state != "approved":
            return f"{found.node}: case {found.id[:4]} has your yes; another person's is needed too"
        seen = any(one.id == found.id for one in self._head.decisions)
        if not seen:
            return f"{found.node}: case {found.id[:4]} approved, but its cause is not seen now"
        return f"{found.node}: case {found.id[:4]} approved; it is drained when every guard passes"

    @_lasting
    async def deny(self, case: str, user: str) -> str:
        """No to a waiting drain."""
        found = await self._word(self._head.drains.deny, case, user)
        return f"{found.node}: case {found.id[:4]} denied; this cause will not drain it"

    @_lasting
    async def resume(self, node: str, user: str) -> str:
        """Lifts our own drain."""
        self._known(node)
        word = _Resume(node, user)
        self._resumes.append(word)
        await self._head.returned(await self._word(self._lift))
        if isinstance(word.came, RefusedError):
            raise Refused(str(word.came))
        if word.came is None:
            raise Refused(f"{node} was not lifted: tocsin's own log says why")
        shown = self._known(node)  # as it was read back
        if shown.base in ("unknown", "down", "error", "future"):
            return f"the drain of {node} is lifted; it is not in service, Slurm shows {shown.words}"
        return f"{node} is back in service"

    @_lasting
    async def prove(self, node: str, user: str) -> str:
        """Tests a node that we hold, by a job of ours."""
        self._known(node)
        await self._word(self._head.drains.prove, node, user)
        return f"{node} is being tested; tocsin explain {node} shows how far it is, and its figures"

    @_lasting
    async def lock(self, node: str, user: str, locked: bool) -> str:
        """Locks a node against tocsin, or unlocks it."""
        self._known(node)
        act = self._head.drains.lock if locked else self._head.drains.unlock
        await self._word(act, node, user)
        return f"{node} is {'locked: tocsin will not drain it' if locked else 'unlocked'}"

    @_lasting
    async def close_breaker(self, user: str) -> str:
        """Lets drains through again."""
        await self._word(self._head.drains.close_breaker, user)
        return "the breaker is closed: drains may go on"

    @_lasting
    async def verdict(self, case: str, right: bool, user: str) -> str:
        """Whether a decision was right."""
        found = await self._word(self._head.drains.verdict, case, right, user)
        await self._head.intake.keep(word_samples(found, right, self._head.clock.now_ns()))
        return f"{found.node}: case {found.id[:4]} recorded as {'right' if right else 'wrong'}"

    def _lift(self, now_ns: int) -> list[Returned]:
        """Lifts all that was asked for by now, in one write: while one is under way the next
        words gather. In the hand thread; answers the nodes that came back.
        """
        returned: list[Returned] = []
        while self._resumes:
            words: dict[str, _Resume] = {}
            while self._resumes and self._resumes[0].node not in words:
                word = self._resumes.popleft()
                words[word.node] = word
            drains = self._head.drains
            came = drains.resume_all({node: word.user for node, word in words.items()}, now_ns)
            for node, word in words.items():
                word.came = came[node]
            returned += [one for one in came.values() if isinstance(one, Returned)]
            # Until Slurm is read again the node would look drained, and a new fault refused.
            self._head.desk.saw(drains.take_shown())
        return returned

    # ---- inside ------------------------------------------------------------------------

    async def _word(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """One operator's word, in the hand thread, its refusals in the API's words."""
        try:
            now_ns = self._head.clock.now_ns()
            return await self._hand(lambda: act(*arguments, now_ns))
        except UnknownCaseError as error:
            raise UnknownSubject(str(error)) from error
        except (RefusedError, SlurmError) as error:
            raise Refused(str(error)) from error
        finally:
            await self._hand(self._head.look_at_ledger)

    async def _hand(
        self, function: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> Result:
        return await self._head.by_hand(function, *arguments)

    def _known(self, name: str) -> NodeState:
        node = self._head.nodes.get(name)
        if node is None:
            raise UnknownSubject(f"Slurm has no node {name}; tocsin nodes lists what it has")
        return node
