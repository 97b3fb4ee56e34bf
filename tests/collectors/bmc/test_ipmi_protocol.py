"""Packets, sensor records and log records of IPMI from bytes, also from wrong ones."""

from __future__ import annotations

import os
import random

import pytest

from collectors.bmc import ipmi_discrete, ipmi_lan, ipmi_read
from collectors.bmc.ipmi_aes import Cbc
from collectors.bmc.ipmi_packets import (
    OPEN_RESPONSE,
    SUITES,
    BadPacket,
    Handshake,
    Session,
    capabilities_request,
    open_plain,
    plain,
    speaks_2_0,
)
from collectors.bmc.ipmi_records import SensorRecord, entry_of, sensors_of
from collectors.bmc.ipmi_sel_entry import to_sample
from collectors.bmc.points import Readings
from daemon.bench.bmc_standin import RECORDS, Bmc

NOW_NS = 1_796_100_000 * 10**9


def test_aes_is_that_of_the_standard() -> None:
    # NIST SP 800-38A, F.2.1: CBC-AES128.Encrypt, first block
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    iv = bytes(range(16))
    block = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    cipher = Cbc(key)
    secret = cipher.encrypt(iv, block)
    assert secret.hex() == "7649abac8119b246cee98e9b12e9197d"
    assert cipher.decrypt(iv, secret) == block
    cipher.close()
    cipher.close()


def pair(number: int = 3) -> tuple[Session, Bmc]:
    """Our end of a session with a stand-in, opened by the real handshake."""
    bmc = Bmc()
    shake = Handshake(SUITES[number], b"admin", b"secret", 2)
    for packet, take in (
        (shake.open_request, shake.take_open),
        (shake.rakp1, shake.take_rakp2),
        (shake.rakp3, shake.take_rakp4),
    ):
        answer = bmc.answer(packet())
        assert answer is not None
        assert take(open_plain(answer)[1]) == 0
    return shake.session(), bmc


@pytest.mark.parametrize("number", [3, 17])
def test_an_answer_that_was_changed_on_its_way_is_refused(number: int) -> None:
    session, bmc = pair(number)
    _, packet = session.seal(0x06, 0x01, b"")
    answer = bmc.answer(packet)
    assert answer is not None
    assert session.open(answer)[2] == 0
    rng = random.Random(number)
    for _ in range(400):
        wrong = bytearray(answer)
        wrong[rng.randrange(4, len(wrong))] ^= 1 << rng.randrange(8)
        with pytest.raises(BadPacket):
            session.open(bytes(wrong))
    for size in range(len(answer)):
        with pytest.raises(BadPacket):
            session.open(answer[:size])


def test_noise_instead_of_a_handshake_never_raises_anything_else() -> None:
    rng = random.Random(1)
    for _ in range(500):
        noise = rng.randbytes(rng.randrange(0, 90))
        try:
            _, payload = open_plain(b"\x06\x00\xff\x07\x06" + noise)
        except BadPacket:
            continue
        shake = Handshake(SUITES[3], b"admin", b"secret", 2)
        for take in (shake.take_open, shake.take_rakp2, shake.take_rakp4):
            try:
                take(payload)
            except BadPacket:
                continue
        assert shake.sik == b"", "noise opened a session"


def test_a_wrong_password_is_seen_in_the_second_message_before_ours_is_proved() -> None:
    bmc = Bmc()
    shake = Handshake(SUITES[3], b"admin", b"wrong", 2)
    answer = bmc.answer(shake.open_request())
    assert answer is not None
    shake.take_open(open_plain(answer)[1])
    answer = bmc.answer(shake.rakp1())
    assert answer is not None
    assert shake.take_rakp2(open_plain(answer)[1]) == -1


def test_a_login_does_not_print_its_password() -> None:
    login = ipmi_lan.Login(b"admin", b"hunter2", b"kgkg")
    assert "hunter2" not in repr(login)
    assert "kgkg" not in str(login)


# ---- sensor records ------------------------------------------------------------------------------


def test_records_of_a_server_are_read() -> None:
    sensors = [one for record, _ in RECORDS for one in sensors_of(record)]
    assert len(sensors) == 35
    assert sensors[0].name == "Inlet Temp"
    assert sensors[0].value(24) == 24.0
    p12v = next(one for one in sensors if one.name == "P12V")
    assert p12v.value(201) == 12.06
    assert (p12v.kind, p12v.entity) == ("volts", "7.117")


@pytest.mark.parametrize(
    ("analog_format", "raw", "value"),
    [(0, 200, 200.0), (1, 0xFE, -1.0), (1, 0xFF, 0.0), (2, 0xF6, -10.0), (2, 20, 20.0)],
)
def test_signed_readings_follow_the_format_of_the_sensor(
    analog_format: int, raw: int, value: float
) -> None:
    one = SensorRecord("T", 1, 0, 1, 1, "7.1", "degrees C", analog_format)
    assert one.value(raw) == pytest.approx(value)


@pytest.mark.parametrize(
    ("linearization", "value"), [(0, 4.0), (7, 0.25), (8, 16.0), (9, 64.0), (10, 2.0), (6, 16.0)]
)
def test_readings_are_linearized(linearization: int, value: float) -> None:
    one = SensorRecord("T", 1, 0, 1, 1, "7.1", "Volts", 0, linearization)
    assert one.value(4) == pytest.approx(value)


def test_a_reading_that_has_no_result_is_none() -> None:
    one = SensorRecord("T", 1, 0, 1, 1, "7.1", "Volts", 0, 1)
    assert one.value(0) is None  # the logarithm of 0
    assert SensorRecord("T", 1, 0, 1, 1, "7.1", "Volts", 0, 0x70).value(4) is None


def test_factors_may_be_negative_and_scaled() -> None:
    record = bytearray(RECORDS[0][0])
    record[24], record[25] = 0xFF, 0xC0  # M = -1
    record[26], record[27] = 0x64, 0x00  # B = 100
    record[29] = 0xF1  # result exponent -1, B exponent 1
    one = sensors_of(bytes(record))[0]
    assert one.value(50) == pytest.approx((-50 + 1000) / 10)


def test_a_compact_record_for_several_sensors_gives_each_its_number_and_name() -> None:
    head = bytes([9, 0, 0x51, 0x02])
    body = bytes([0x20, 0, 0x40, 0x0A, 0x01, 0, 0, 0x08, 0x6F]) + bytes(9)
    body += bytes([0x03, 0x01]) + bytes(6) + bytes([0xC0 | 3]) + b"PSU"
    found = sensors_of(head + bytes([len(body)]) + body)
    assert [(one.name, one.number) for one in found] == [
        ("PSU1", 0x40),
        ("PSU2", 0x41),
        ("PSU3", 0x42),
    ]


def test_a_name_in_packed_six_bit_letters_is_read() -> None:
    record = bytearray(RECORDS[0][0][:47])
    bits = 0
    for place, letter in enumerate("TEMP"):
        bits |= (ord(letter) - 0x20) << 6 * place
    record += bytes([0x80 | 3]) + bits.to_bytes(3, "little")
    record[4] = len(record) - 5
    assert sensors_of(bytes(record))[0].name == "TEMP"


def test_sensors_behind_another_controller_are_left_out() -> None:
    record = bytearray(RECORDS[0][0])
    record[5] = 0x2C
    assert sensors_of(bytes(record)) == ()


def test_records_of_noise_and_cut_records_never_raise() -> None:
    rng = random.Random(2)
    for _ in range(2_000):
        noise = bytearray(rng.randbytes(rng.randrange(0, 70)))
        if len(noise) > 4:
            noise[3], noise[4] = rng.choice((1, 2)), len(noise) - 5
        for one in sensors_of(bytes(noise)):
            one.value(rng.randrange(256))
    for record, _ in RECORDS:
        for size in range(len(record)):
            assert sensors_of(record[:size]) == ()


# ---- log records ---------------------------------------------------------------------------------


def log(
    sensor_type: int, number: int, event: int, data: str, seconds: int = 1_796_000_000
) -> bytes:
    head = b"\x2a\x00\x02" + seconds.to_bytes(4, "little")
    return head + bytes([0x20, 0, 4, sensor_type, number, event]) + bytes.fromhex(data)


@pytest.mark.parametrize(
    ("record", "code", "severity", "words"),
    [
        (log(0x0C, 0x87, 0x6F, "01ffff"), "memory_uncorrectable", 3, "Memory #0x87: Uncorrectable"),
        (log(0x08, 0x1E, 0x6F, "03ffff"), "power_supply_input_lost", 3, "PSU1 Status"),
        (log(0x08, 0x1E, 0xEF, "00ffff"), "power_supply_removed", 2, "deasserted"),
        (log(0x01, 0x01, 0x01, "592f2d"), "temperature_upper_critical", 3,
         "reading 47, threshold 45 degrees C"),
        (log(0x01, 0x01, 0x81, "592c2d"), "temperature_upper_critical", 0, "deasserted"),
        (log(0x04, 0x0B, 0x01, "520609"), "fan_lower_critical", 3, "reading 600, threshold 900"),
        (log(0x08, 0x60, 0x0B, "01ffff"), "redundancy_lost", 2, "Redundancy Lost"),
        (log(0x13, 0x90, 0x6F, "08ffff"), "bus_uncorrectable", 3, "Bus Uncorrectable"),
        (log(0x07, 0x90, 0x6F, "01ffff"), "processor_thermal_trip", 3, "Thermal Trip"),
        (log(0xC7, 0x90, 0x70, "0affff"), "oem", 0, "OEM #0x90: event type 0x70 state 10"),
    ],
)  # fmt: skip
def test_log_records_are_read(record: bytes, code: str, severity: float, words: str) -> None:
    sensors = {(one.number, 0x20): one for known, _ in RECORDS for one in sensors_of(known)}
    made = to_sample(entry_of(record, "n1", sensors), NOW_NS)
    assert (made.tag("code"), made.fields["severity"]) == (code, severity)
    assert words in str(made.fields["text"])
    assert str(made.fields["text"]).startswith("SEL 0x2a: ")
    assert made.time_ns == 1_796_000_000 * 10**9


def test_a_time_since_the_start_of_the_bmc_is_no_time() -> None:
    made = to_sample(entry_of(log(0x0C, 1, 0x6F, "01ffff", 5_832), "n1", {}), NOW_NS)
    assert made.time_ns == NOW_NS
    assert "5832 s after its start" in str(made.fields["text"])


def test_log_records_of_noise_never_raise() -> None:
    for _ in range(3_000):
        made = to_sample(entry_of(os.urandom(16), "n1", {}), NOW_NS)
        assert made.tag("code")
        assert made.time_ns > 0


def test_what_a_bmc_says_of_rmcp_plus_is_read_and_nothing_else() -> None:
    answer = Bmc().answer(capabilities_request())
    assert answer is not None
    assert speaks_2_0(answer) is True
    without = answer[:22] + b"\x04" + answer[23:]
    assert speaks_2_0(without) is False
    refused = answer[:20] + b"\xcc" + answer[21:]
    assert speaks_2_0(refused) is False
    others = (b"", answer[:21], b"\x00" * 40, capabilities_request())
    for other in (*others, plain(OPEN_RESPONSE, b"x" * 36)):
        assert speaks_2_0(other) is None


def test_a_supply_that_measures_has_its_states_and_its_number() -> None:
    """Full records of event type 6Fh with an analogue reading, as some vendors' supplies have."""
    record = bytearray(RECORDS[0][0])
    record[12], record[13] = 0x08, 0x6F
    record[20], record[21] = 0x00, 6  # unsigned, Watts
    (one,) = sensors_of(bytes(record))
    found, held = Readings(), list[ipmi_discrete.Discrete]()
    ipmi_read._take(one, bytes([95, 0xC0, 0x03, 0x80]), "n1", found, held)
    ipmi_discrete.add(found, held)
    told = {(s.tag("sensor"), s.tag("kind")): dict(s.fields) for s in found.samples(1)}
    assert told == {
        (one.name, "watts"): {"value": 95.0, "present": 1.0},
        (one.name, "state"): {"critical": 1.0, "present": 1.0},
    }
    record[20] = 0xC0  # no number
    found, held = Readings(), list[ipmi_discrete.Discrete]()
    (one,) = sensors_of(bytes(record))
    ipmi_read._take(one, bytes([95, 0xC0, 0x03, 0x80]), "n1", found, held)
    assert (len(found), len(held)) == (0, 1)
