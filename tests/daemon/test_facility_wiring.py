"""A rack that is hot is one alert, and none of its nodes is drained for it: watch to policy."""

from __future__ import annotations

from collections.abc import Mapping

from collectors.sample import sample
from collectors.slurm.nodes import NodeState
from daemon.alerts.active import GroupOptions, active_alerts, of_group
from daemon.policy.cases import LedgerView
from daemon.policy.decide import Situation, decide
from daemon.policy.decisions import Action, Decision, Guard, Mode
from daemon.policy.groups import configured
from daemon.policy.limits import Limits
from models.facility import GroupEvent
from models.features import FeatureEngine
from models.rules import Rules
from models.silence import SilenceTracker
from models.watch import Judgement, Watch

SECOND_NS = 1_000_000_000
START_NS = 1_790_000_000 * SECOND_NS
NODES = tuple(f"n{number}" for number in range(1, 9))
GROUPS = configured({"rack": {"r1": "n[1-4]", "r2": "n[5-8]"}})


def watched(inlets: Mapping[str, float], still: frozenset[str] = frozenset()) -> Judgement:
    """Twenty minutes; the fans of the nodes in ``still`` stand after the tenth."""
    watch = Watch(Rules(), SilenceTracker(), FeatureEngine())
    for minute in range(20):
        now_ns = START_NS + minute * 60 * SECOND_NS
        for node in NODES:
            fields = {"value": inlets[node], "present": 1.0}
            tags = {"node": node, "sensor": "Inlet Temp", "kind": "celsius"}
            watch.ingest([sample("bmc", now_ns, fields, **tags)], now_ns)
            turns = {"value": 0.0 if node in still and minute > 9 else 9_000.0, "present": 1.0}
            for fan in ("FAN1", "FAN2", "FAN3"):
                tags = {"node": node, "sensor": fan, "kind": "rpm"}
                watch.ingest([sample("bmc", now_ns, turns, **tags)], now_ns)
            up = {"up": 1.0, "duration_seconds": 0.1, "age_seconds": 0.0}
            watch.ingest([sample("source", now_ns, up, node=node, source="bmc")], now_ns)
    line = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
    event = {"text": line, "severity": 3.0, "device": "0000:9b:00"}
    for node in ("n1", "n5"):
        tags = {"node": node, "kind": "xid", "code": "79"}
        watch.ingest([sample("event", now_ns, event, **tags)], now_ns)
    return watch.judge(now_ns + SECOND_NS, dict.fromkeys(NODES, 8), GROUPS)


def decisions(judgement: Judgement) -> list[Decision]:
    situation = Situation(
        nodes={name: NodeState(name, base="idle") for name in NODES},
        slurm_age_seconds=1.0,
        facts=judgement.facts,
        silences=judgement.silences,
        risks=judgement.risks,
        coverage=judgement.coverage,
        groups=GROUPS,
        group_events=judgement.group_events,
    )
    limits = Limits(drained_share_max=1.0, partition_share_max=1.0, drains_per_hour=10)
    return decide(situation, limits, LedgerView(), Mode.ACT, judgement.now_ns)


def decided(judgement: Judgement) -> dict[str, tuple[Action, Guard | None]]:
    """What became of the XIDs."""
    found = decisions(judgement)
    return {one.node: (one.action, one.guard) for one in found if one.code == "x79"}


def test_a_hot_rack_holds_its_nodes_and_no_others() -> None:
    judgement = watched({n: 41.0 if n in NODES[:4] else 24.0 for n in NODES})
    assert [(one.group, one.kind) for one in judgement.group_events] == [("rack r1", "heat")]
    became = decided(judgement)
    assert became["n1"] == (Action.HOLD, Guard.COMMON_CAUSE)
    assert became["n5"] == (Action.DRAIN, None)


def test_a_cool_room_holds_nobody() -> None:
    judgement = watched(dict.fromkeys(NODES, 24.0))
    assert judgement.group_events == ()
    assert {action for action, _ in decided(judgement).values()} == {Action.DRAIN}


def test_still_fans_of_half_a_rack_are_one_alert_and_no_drains() -> None:
    judgement = watched(dict.fromkeys(NODES, 24.0), frozenset({"n1", "n2", "n3"}))
    (event,) = judgement.group_events
    assert (event.group, event.kind, event.nodes) == ("rack r1", "fans", ("n1", "n2", "n3"))
    assert decided(judgement)["n1"] == (Action.HOLD, Guard.COMMON_CAUSE)
    found = decisions(judgement)
    own = [one for one in found if one.code == "fans"]
    assert {(one.node, one.action) for one in own} == {(n, Action.ALERT) for n in event.nodes}
    alerts = active_alerts(own, (), len(NODES), judgement.now_ns, GroupOptions(), (), (event,))
    assert [one.key for one in alerts] == ["facility/fans/rack r1"]
    assert alerts[0].covers == {f"case/{one.id}" for one in own}


def test_still_fans_of_one_node_are_that_nodes_own() -> None:
    judgement = watched(dict.fromkeys(NODES, 24.0), frozenset({"n2"}))
    assert judgement.group_events == ()
    found = [one for one in decisions(judgement) if one.code == "fans"]
    alerts = active_alerts(found, (), len(NODES), judgement.now_ns, GroupOptions())
    assert [one.node for one in alerts] == ["n2"]


def test_one_group_event_is_one_alert_whatever_its_size() -> None:
    event = GroupEvent("rack r1", "heat", START_NS, NODES[:4], 3, "inlet air at 41 C")
    alert = of_group(event)
    assert alert.key == "facility/heat/rack r1"
    assert "4 nodes" in alert.title
    assert "no node of it is drained" in alert.text


def test_the_state_of_the_facility_outlives_a_restart() -> None:
    watch = Watch(Rules(), SilenceTracker(), FeatureEngine())
    fresh = Watch(Rules(), SilenceTracker(), FeatureEngine())
    fresh.load(watch.dump())
    assert fresh.dump() == watch.dump()
