"""What each Xid asks for, against NVIDIA's catalogue and against common sense."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import nvlink5, xid
from models.voices import Remedy

XID = "NVRM: Xid (PCI:0000:3b:00): "
# NVIDIA's codes for what a program did wrong, or what happens to it without fault of the GPU.
APPLICATION = (8, 11, 13, 25, 31, 32, 37, 38, 39, 43, 44, 45, 60, 66, 67, 68, 69, 80, 137, 141, 160)


def data(name: str) -> Path:
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    path = Path(os.environ.get("TOCSIN_DATA", beside)) / name
    if not path.exists():
        pytest.skip(f"{path} is not here (set TOCSIN_DATA to the folder that holds it)")
    return path


def test_all_172_codes_are_in_the_table() -> None:
    assert sorted(xid.catalogue()) == list(range(1, 173))


def test_actions_and_words_are_the_catalogues() -> None:
    with open(data("xid-catalog/xid_catalog.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 172
    for row in rows:
        own = xid.catalogue()[int(row["code"])]
        assert own.mnemonic == row["mnemonic"]
        assert own.description == row["short_description"]
        assert own.immediate == row["immediate_action"]
        assert own.investigatory == row["investigatory_action"]
        assert own.recovery_since == row["xid154_linkage"]
        assert own.applies == {
            name for name in ("a100", "h100", "b100", "gb200") if row[name] == "YES"
        }


@pytest.mark.parametrize("code", APPLICATION)
def test_application_xids_ask_for_nothing(code: int) -> None:
    assert xid.judge(code).remedy is Remedy.NONE


@pytest.mark.parametrize(
    "code", [46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158]
)
def test_xids_that_take_the_gpu_out_drain(code: int) -> None:
    verdict = xid.judge(code)
    assert verdict.remedy is Remedy.DRAIN
    assert verdict.severity >= 2
    assert verdict.advice


@pytest.mark.parametrize("code", [92, 93, 94, 121, 157, 161, 167, 171, 172, 78, 999, 0, 99999])
def test_xids_that_a_person_should_know_alert(code: int) -> None:
    assert xid.judge(code).remedy is Remedy.ALERT


@pytest.mark.parametrize("code", [63, 106, 107, 162])
def test_xids_that_are_only_recorded_ask_for_nothing(code: int) -> None:
    assert xid.judge(code).remedy is Remedy.NONE


def test_every_reset_or_restart_of_the_catalogue_drains_and_no_restart_of_an_application() -> None:
    for code, row in xid.catalogue().items():
        remedy = xid.judge(code).remedy
        if row.immediate in ("RESET_GPU", "RESTART_BM", "RESTART_VM", "CHECK_MECHANICALS"):
            assert remedy is Remedy.DRAIN, code
        if row.immediate in ("RESTART_APP", "IGNORE", ""):
            assert remedy is not Remedy.DRAIN, code


def test_words_are_short_and_plain() -> None:
    for code in range(1, 173):
        text = xid.judge(code).text
        assert text
        assert text.isascii()
        assert len(text) <= 70


@pytest.mark.parametrize(
    ("word", "remedy", "takes_back"),
    [
        ("0x0 (None)", Remedy.NONE, True),
        ("0x1 (GPU Reset Required)", Remedy.DRAIN, False),
        ("0x2 (Node Reboot Required)", Remedy.DRAIN, False),
        ("0x3 (Drain P2P)", Remedy.DRAIN, False),
        ("0x4 (Drain and Reset)", Remedy.DRAIN, False),
        ("0x5 (Recover IMEX Domain)", Remedy.ALERT, False),
        ("0x63 (Something New)", Remedy.ALERT, False),
    ],
)
def test_154_asks_for_what_its_own_word_says(word: str, remedy: Remedy, takes_back: bool) -> None:
    line = f"{XID}154, GPU recovery action changed from 0x0 (None) to {word}"
    verdict = xid.judge(154, line)
    assert (verdict.remedy, verdict.takes_back) == (remedy, takes_back)


def nvlink_rows() -> list[dict[str, str]]:
    with open(xid.TABLES / "nvlink5.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("version", ["bits_v1", "bits_v2"])
def test_every_row_of_the_nvlink_table_is_decoded_from_a_line_of_its_own_making(
    version: str,
) -> None:
    rows = nvlink_rows()
    assert len(rows) == 95
    for row in rows:
        info = int(row[version].replace("-", "0"), 2)
        status = int((row["error_status"].split("/")[0] or "0x0"), 16)
        fatal = "Nonfatal" if row["severity"].startswith("Non") else "Fatal"
        unit = row["units"].replace(" ", "_")
        line = f"{XID}{row['xid']}, {unit} {fatal} XC0 i0 Link 03 (0x{info:08x} 0x{status:08x})"
        decoded = nvlink5.decode(int(row["xid"]), line)
        assert decoded is not None, line
        assert decoded.immediate == row["immediate_action"], line
        assert decoded.investigatory == row["investigatory_action"]
        assert decoded.link == 3


def test_the_second_action_is_taken_where_its_bit_is_set() -> None:
    plain = f"{XID}145, RLW_RXPIPE Nonfatal XC0 i0 Link 03 (0x000000c2 0x00000001)"
    other = f"{XID}145, RLW_RXPIPE Nonfatal XC0 i0 Link 03 (0x000004c2 0x00000001)"
    assert xid.judge(145, plain).immediate == "IGNORE"
    assert xid.judge(145, other).immediate == "RESET_GPU"
    assert xid.judge(145, other).remedy is Remedy.DRAIN


def test_of_several_error_bits_the_gravest_speaks() -> None:
    line = f"{XID}144, SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000006)"
    assert xid.judge(144, line).immediate == "RESET_GPU"


def test_an_nvlink_line_outside_the_table_or_cut_off_only_alerts() -> None:
    for message in (
        "SAW_EGR Fatal XC0 i0 Link 00 (0x00000004 0x00000001)",
        "SAW_MVB Fatal XC0 i0 Link 00 (0x000000",
        "Placeholder message",
    ):
        assert xid.judge(144, f"{XID}144, {message}").remedy is Remedy.ALERT


def test_an_nvlink_line_left_to_154_asks_for_nothing_itself() -> None:
    line = f"{XID}145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008)"
    verdict = xid.judge(145, line)
    assert (verdict.immediate, verdict.remedy) == ("XID_154_EVAL", Remedy.NONE)


@given(st.integers(0, 10**7), st.text(max_size=200))
def test_no_line_gives_a_traceback(code: int, text: str) -> None:
    for line in (text, f"{XID}{code}, {text}"):
        assert xid.judge(code, line).text


def test_codes_that_only_the_driver_names_are_told_by_that_name_and_never_acted_on() -> None:
    for code, words in ((173, "link to the CPU"), (175, "memory subsystem"), (176, "PCIe")):
        told = xid.judge(code, f"NVRM: Xid (PCI:0009:01:00): {code}, something")
        assert told.remedy is Remedy.ALERT
        assert words in told.text
    assert xid.judge(173, "NVRM: Xid (PCI:0009:01:00): 173, x").severity == 2
    assert xid.judge(999).text == "Xid 999, not in the catalogue"
