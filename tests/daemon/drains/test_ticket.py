"""The text of a ticket: everything that a vendor asks for, and what was not read said so."""

from __future__ import annotations

import pyarrow as pa

from daemon.drains.ledger import Entry
from daemon.drains.ticket import board_of, newest_counters, with_ticket
from daemon.explain import of_case
from daemon.page.view import Explanation
from daemon.policy.decisions import Decision
from daemon.store.events import Event
from tests.daemon.policy.test_policy import case, judge
from tests.daemon.worlds import START_NS, lost, risk

LINE = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."


def told_event(kind: str, code: str, text: str, device: str = "", after_ns: int = 0) -> Event:
    return Event(0, START_NS + after_ns, "n1", kind, code, device, 0.0, text, "", None)


EVENTS = [
    told_event("inventory", "gpu", "gpu=3 uuid=GPU-old serial=1 model=H100", "0000:9b:00", -9),
    told_event("inventory", "gpu", "gpu=3 uuid=GPU-3 serial=1654 model=NVIDIA H100 80GB HBM3",
               "0000:9b:00"),
    told_event("inventory", "gpu", "gpu=31 uuid=GPU-31 serial=9 model=H100", "0000:aa:00", 1),
    told_event("version", "vbios", "96.00.99.00.01", "0000:9b:00"),
    told_event("version", "vbios", "1.2.3", "0000:aa:00", 1),
    told_event("version", "driver", "550.90.07"),
    told_event("inventory", "chassis", "serial=SGH123 disk=S5X"),
    told_event("xid", "79", LINE, "0000:9b:00", 2),
    told_event("xid", "13", "NVRM: Xid 13 of another", "0000:aa:00", 2),
]  # fmt: skip


def explained(decision: Decision) -> Explanation:
    return of_case(case("n1", decision), [decision], [], [], [])


def test_a_ticket_holds_what_a_vendor_asks_for() -> None:
    entry = Entry(1, START_NS, "tocsin", "drained", "n1", "", "", {})
    told = with_ticket(
        explained(judge(lost("n1"))[0]), "gpu3", EVENTS,
        {"remapped_rows_uncorrected_total": 2.0, "row_remap_failed": 0.0}, [entry],
    )  # fmt: skip
    text = "\n".join(told.ticket)
    for words in (
        "Node n1, gpu3: fell off the bus", "NVIDIA H100 80GB HBM3, serial 1654, UUID GPU-3",
        "PCI 0000:9b:00, VBIOS 96.00.99.00.01, driver 550.90.07", "serial=SGH123", LINE,
        "79 (1 times)", "remapped_rows_uncorrected_total 2, row_remap_failed 0",
        "drained", "reboot the node",
        "nvidia-bug-report.sh",
    ):  # fmt: skip
        assert words in text, words
    assert "GPU-31" not in text
    assert "Xid 13" not in text


def test_what_was_not_read_is_said_and_never_made_up() -> None:
    told = with_ticket(explained(judge(lost("n1"))[0]), "gpu3", [], {}, [])
    text = "\n".join(told.ticket)
    assert "serial not read, UUID not read" in text
    assert "none was read" in text
    assert "Done so far: nothing" in text


def test_a_likelihood_and_a_node_have_no_ticket() -> None:
    risky = explained(judge(risks=(risk("n1", 0.95),))[0])
    assert with_ticket(risky, "gpu0", EVENTS, {}, []).ticket == ()
    assert with_ticket(explained(judge(lost("n1"))[0]), "mlx5_0/1", EVENTS, {}, []).ticket == ()


def test_a_gpu_is_found_by_its_address_too() -> None:
    assert board_of("0000:9b:00", EVENTS).serial == "1654"
    assert board_of("gpu7", EVENTS).serial == ""


def test_the_last_value_of_each_counter_counts() -> None:
    table = pa.table(
        {"time": [1, 2, 3], "ecc_corrected_total": [1.0, 4.0, None], "row_remap_failed": [None] * 3}
    )
    assert newest_counters(table) == {"ecc_corrected_total": 4.0}
