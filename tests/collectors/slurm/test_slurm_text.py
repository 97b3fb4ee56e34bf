"""Slurm 22.05 is read as text, but only where that can be read in one way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collectors.command import Result, Runner
from collectors.slurm.faults import SlurmTrouble
from collectors.slurm.nodes import Nodes, parse_nodes
from collectors.slurm.reader import UNCLEAR_READS, SlurmReader, Tools
from collectors.slurm.text_nodes import clear
from tests.testbed.slurm.cluster import Cluster, wait_for

FIXTURES = Path(__file__).parents[2] / "fixtures/slurm/22.05"
STAMP = " [root@2026-11-30T02:50:50]"
# Pieces that make a text look like something else.
PIECES = (
    "bad DIMM", "a=b", "[x@y]", STAMP, " [@Unknown]", " Reason=ours", " Comment=hi", " Extra=e",
    " ReservationName=r1", " Topology=t:s1", " Parameters=a=b", " State=IDLE",
    "\nNodeName=n2 State=DOWN", "\nNodeName=n9 State=IDLE",
    "\n", "\x0b", "\u2028", "  ", " OS=x", "tocsin:x79 gpu3 9f2c", "Zoë",
)  # fmt: skip
WORDS = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)


@dataclass(frozen=True)
class Said:
    """What people, and a node, set; Slurm prints it as it is."""

    reason: str = ""
    comment: str = ""
    extra: str = ""
    reservation: str = ""
    topology: str = ""
    system: str = "Linux 6.1.0-28-amd64 #1 SMP PREEMPT_DYNAMIC"


def printed(name: str, said: Said) -> str:
    """A node as ``scontrol --oneliner`` prints it (src/api/node_info.c): ``topology`` is what 25.05
    and later add.
    """
    free = f" Reason={said.reason}{STAMP}" if said.reason else ""
    free += f" Comment={said.comment}" if said.comment else ""
    free += f" Extra={said.extra}" if said.extra else ""
    free += f" ReservationName={said.reservation}" if said.reservation else ""
    free += f" Topology={said.topology}" if said.topology else ""
    return (
        f"NodeName={name} Arch=x86_64 CPUTot=64 Gres=gpu:h200:8 NodeAddr={name} Version=22.05.8 "
        f"OS={said.system} RealMemory=1000 State=IDLE+DRAIN ThreadsPerCore=1 Weight=7 "
        f"Partitions=batch  BootTime=2026-11-29T10:00:00 CfgTRES=cpu=64 AllocTRES= "
        f"ExtSensorsTemp=n/s{free}"
    )


@settings(max_examples=600, deadline=None)
@given(
    st.builds(
        Said, WORDS, WORDS, WORDS, st.sampled_from(["", "m1"]), st.sampled_from(["", "t:s1"]),
        st.sampled_from(["Linux 6.1 #1 SMP", "Linux State=IDLE", "x Weight=1 y", "", "a b"]),
    )
)  # fmt: skip
@example(Said(reason="a Comment=b"))
@example(Said(reason="x", comment="y ReservationName=m1"))
@example(Said(comment=f"Reason=ours{STAMP}"))
@example(Said(comment=f"x Reason=ours{STAMP}"))
@example(Said(reason=f"mine{STAMP} Comment=x"))
def test_what_counts_as_clear_is_read_word_for_word(said: Said) -> None:
    text = printed("n1", said) + "\n" + printed("n2", Said()) + "\n"
    if not clear(text):
        return
    nodes, problems = parse_nodes(text)
    assert problems == []
    assert set(nodes) == {"n1", "n2"}
    node = nodes["n1"]
    # Blanks at the ends are not told apart.
    assert (node.reason.strip(), node.comment.strip()) == (
        said.reason.strip(), said.comment.strip(),
    )  # fmt: skip
    assert (node.reservation, node.words) == (said.reservation, "IDLE+DRAIN")
    assert (node.weight, node.partitions) == (7, ("batch",))
    assert nodes["n2"].reason == ""


@pytest.mark.parametrize(
    "said",
    [
        Said(),
        Said(reason="tocsin:x79 gpu3 9f2c; fell off the bus; tocsin explain 9f2c"),
        Said(reason="ask Zoë: a=b [x@y]", comment="rack 7 = PDU 3"),
        Said(comment="rack 7"),
        Said(reason="maintenance", reservation="m1"),
        Said(reason="maintenance", reservation="m1", topology="default:s1"),
        Said(topology="default:s1"),
    ],
)
def test_what_people_usually_write_is_clear(said: Said) -> None:
    assert clear(printed("n1", said) + "\n")


@pytest.mark.parametrize("behind", ["Topology=default:s1", "Parameters=a=b", "InstanceId=i-1 "])
@pytest.mark.parametrize("reserved", ["", " ReservationName=m1"])
def test_what_newer_versions_print_behind_a_reason_is_no_part_of_it(
    behind: str, reserved: str
) -> None:
    ours = "tocsin:x79 gpu3 9f2c; fell off the bus; tocsin explain 9f2c"
    for comment in ("", "rack 7"):
        said = printed("n1", Said(reason=ours, comment=comment)) + f"{reserved} {behind}"
        nodes, problems = parse_nodes(said)
        assert problems == []
        assert (nodes["n1"].reason, nodes["n1"].reason_user) == (ours, "root")
        assert nodes["n1"].comment == comment
        assert nodes["n1"].reservation == ("m1" if reserved else "")


def test_nothing_is_not_clear() -> None:
    assert not clear("")
    assert not clear("slurm_load_node error: Unable to contact slurm controller\n")
    recorded = (FIXTURES / "scontrol-nodes.txt").read_text()
    assert clear(recorded)
    assert not clear(recorded.replace(" State=", "\n   State=")), "many lines a node"


class Counting(Runner):
    """Runs the real commands and keeps their names."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []

    def run(self, argv: Any, **more: Any) -> Result:
        self.ran.append(Path(argv[0]).name + (" json" if "--json" in argv else ""))
        return super().run(argv, **more)


def plain(nodes: Nodes) -> Nodes:
    """Without what slurmctld changes by itself from one read to the next."""
    return {name: replace(one, flags=one.flags - {"NOT_RESPONDING"}) for name, one in nodes.items()}


@pytest.mark.slurm
def test_text_and_json_of_a_real_22_05_say_the_same_in_every_state(slurm: Cluster) -> None:
    slurm.start_job("n1", "--gres=gpu:3")
    slurm.drain("n1", "ask Zoë: a=b [x@y]")
    slurm.update("n2", state="down", reason="bad DIMM")
    slurm.update("n2", comment="rack 7 = PDU 3")
    slurm.update("n3", weight="42", availablefeatures="a,b", activefeatures="a")
    slurm.run(
        "scontrol", "create", "reservation", "reservationname=m1", "starttime=now",
        "duration=10", "users=root", "nodes=n4", "flags=maint,ignore_jobs",
    )  # fmt: skip
    wait_for(
        lambda: "MAINTENANCE" in parse_nodes(slurm.run("sinfo", "--json"))[0]["n4"].flags, "MAINT"
    )
    runner = Counting()
    reader = SlurmReader(Tools(), runner)
    nodes, problems = reader.nodes()
    assert problems == []
    assert "sinfo json" not in runner.ran
    runner.ran.clear()
    again, _ = reader.nodes()
    assert runner.ran == ["scontrol"], "one request"
    told, _ = parse_nodes(slurm.run("sinfo", "--all", "--local", "--json"))
    assert plain(nodes) == plain(again) == plain(told)
    assert nodes["n1"].gpus_allocated == 3
    slurm.run("scontrol", "reconfigure")  # weight and features are the configuration's again


@pytest.mark.slurm
def test_words_that_look_like_fields_are_read_as_json_and_not_tried_again_for_a_while(
    slurm: Cluster,
) -> None:
    odd = f"mine{STAMP} Comment=tocsin"
    slurm.drain("n3", odd)
    slurm.update("n3", comment="theirs")
    runner = Counting()
    reader = SlurmReader(Tools(), runner)
    nodes, _ = reader.nodes()
    assert (nodes["n3"].reason, nodes["n3"].comment) == (odd, "theirs")
    runner.ran.clear()
    for _ in range(3):
        reader.nodes()
    assert runner.ran == ["sinfo json"] * 3
    reader._without_text = 0
    slurm.update("n3", state="resume")
    slurm.update("n3", comment="")
    runner.ran.clear()
    reader.nodes()
    assert runner.ran == ["scontrol"]
    assert UNCLEAR_READS > 1


@pytest.mark.slurm
def test_a_stopped_controller_is_named_at_once(slurm: Cluster) -> None:
    runner = Counting()
    reader = SlurmReader(Tools(), runner)
    reader.nodes()
    runner.ran.clear()
    slurm.stop_controller()
    try:
        with pytest.raises(SlurmTrouble) as caught:
            reader.nodes()
    finally:
        slurm.start_controller()
    assert caught.value.kind == "stopped"
    assert runner.ran == ["scontrol"]
