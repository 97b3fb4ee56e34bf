"""The simulated cluster: what the fleet does, Slurm shows, and the other way round."""

from __future__ import annotations

from daemon.demo.cluster import SECOND_NS, Cluster, rack_size
from daemon.demo.plot import Act

START_NS = 1_788_000_000 * SECOND_NS


def cluster(*acts: Act, nodes: int = 16) -> Cluster:
    return Cluster(nodes, 8, 3, START_NS, START_NS, iter(acts))


def after(made: Cluster, seconds: float, step: float = 30.0) -> list[str]:
    """Moves on and gives back ``kind/code`` of every event on the way."""
    events = []
    until_ns = made.fleet.now_ns + int(seconds * SECOND_NS)
    while made.fleet.now_ns < until_ns:
        samples = made.step(made.fleet.now_ns + int(step * SECOND_NS))
        told = [one for one in samples if one.measurement == "event"]
        events += [f"{one.tag('kind')}/{one.tag('code')}" for one in told]
    return events


def test_slurm_shows_the_jobs_that_the_fleet_runs() -> None:
    made = cluster()
    after(made, 120)
    nodes = made.slurm.nodes()
    assert sum(node.gpus_allocated for node in nodes.values()) > 50
    for name, node in nodes.items():
        assert node.gpus_allocated == made.fleet.gpus_allocated(name)
        assert bool(node.jobs) == (node.base in ("mixed", "allocated"))


def test_a_drained_node_runs_its_jobs_to_the_end_and_gets_no_new_one() -> None:
    made = cluster()
    after(made, 60)
    busy = next(name for name, node in made.slurm.nodes().items() if node.base == "allocated")
    made.slurm.drain({busy: "tocsin:x79 test"}, lambda node: "")
    jobs = made.slurm.nodes()[busy].jobs
    after(made, 60)
    assert made.slurm.nodes()[busy].drain
    assert set(made.slurm.nodes()[busy].jobs) <= set(jobs)
    after(made, 80 * 3600, step=600)
    assert made.slurm.nodes()[busy].jobs == ()
    assert made.slurm.nodes()[busy].reason == "tocsin:x79 test"


def test_drains_of_others_are_there_from_the_start_and_stay() -> None:
    made = cluster()
    after(made, 600)
    foreign = {n.name: n.reason_user for n in made.slurm.nodes().values() if n.drain}
    assert len(foreign) == 2
    assert set(foreign.values()) == {"root"}


def test_a_lost_gpu_is_told_by_the_kernel_and_kills_its_job_later() -> None:
    made = cluster(Act(60, "bus_lost", (5,), 3))
    events = after(made, 300)
    assert "xid/79" in events
    after(made, 900)
    assert made.fleet.sick == {made.fleet.names[5]}


def test_application_errors_are_heard_and_harm_nothing() -> None:
    made = cluster(Act(30, "noise", (1,), 0), Act(60, "noise", (2,), 1))
    events = after(made, 120)
    assert sum(event in ("xid/13", "xid/31", "xid/43") for event in events) == 2
    assert made.fleet.sick == frozenset()


def test_silence_takes_readings_away_and_leaves_slurm_as_it_is() -> None:
    made = cluster(Act(60, "silence", (14, 15), 0, 300))
    after(made, 120)
    names = {sample.tag("node") for sample in made.step(made.fleet.now_ns + 30 * SECOND_NS)
             if sample.measurement in ("gpu", "host", "source")}  # fmt: skip
    assert made.fleet.names[15] not in names
    assert made.fleet.names[0] in names
    assert made.slurm.nodes()[made.fleet.names[15]].responding
    after(made, 600)
    heard = {s.tag("node") for s in made.step(made.fleet.now_ns + 30 * SECOND_NS)}
    assert made.fleet.names[15] in heard


def test_a_node_that_is_away_goes_down_and_comes_back_as_slurm_does_it() -> None:
    made = cluster()
    after(made, 60)
    name = made.fleet.names[3]
    made.fleet.reboot(name)
    after(made, 60)
    assert not made.slurm.nodes()[name].responding
    assert not made.slurm.nodes()[name].down
    after(made, 330)
    assert made.slurm.nodes()[name].down
    assert made.slurm.nodes()[name].reason == "Not responding"
    boot_ns = made.slurm.nodes()[name].boot_time_ns
    after(made, 600)
    assert made.slurm.nodes()[name].registered
    assert made.slurm.nodes()[name].reason == ""
    assert made.slurm.nodes()[name].boot_time_ns > boot_ns


def test_a_drained_and_mended_node_waits_for_the_operator_once() -> None:
    made = cluster(Act(60, "bus_lost", (5,), 3))
    after(made, 120)
    name = made.fleet.names[5]
    made.slurm.drain({name: "tocsin:x79 gpu3"}, lambda node: "")
    after(made, 4 * 3600, step=120)
    assert made.returned() == [name]
    assert made.returned() == []
    assert made.slurm.nodes()[name].drain
    assert made.fleet.sick == frozenset()


def test_racks_are_few_enough_to_be_drawn() -> None:
    assert rack_size(64) == 8
    assert 10_000 / rack_size(10_000) <= 48
