from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.sample import sample
from daemon.frames import frame
from daemon.store.check import repair, stats, verify
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.parts import HOUR_NS, all_parts
from daemon.store.reader import Reader
from daemon.store.segments import list_segments, segment_path

START_NS = 1_780_000_000_000_000_000 // HOUR_NS * HOUR_NS


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A closed store: three hours in Parquet, one commit in the spool, five events."""
    store = Store(tmp_path)
    for hour in range(3):
        store.append(
            sample("gpu", START_NS + hour * HOUR_NS + n, {"a": float(n), "b": 1.0}, node="n1")
            for n in range(100)
        )
    store.append(
        sample("event", START_NS + n, {"text": f"e{n}", "severity": 1.0}, node="n1", kind="xid")
        for n in range(5)
    )
    store.commit()
    store.roll(START_NS, everything=True)
    store.append([sample("gpu", START_NS + 5 * HOUR_NS, {"a": 1.0}, node="n2")])
    store.commit()
    store.close()
    return tmp_path


def texts(directory: Path) -> list[str]:
    return [str(finding) for finding in verify(directory)]


def gpu_rows(directory: Path) -> int:
    return Reader(directory).read("gpu", 0, 2**62).num_rows


def test_a_sound_store_has_no_findings_and_repair_keeps_every_row(directory: Path) -> None:
    assert texts(directory) == []
    assert repair(directory) == ["rolled 1 spool segments"]
    assert texts(directory) == []
    assert gpu_rows(directory) == 301


def test_stats_count_rows_values_bytes_and_events(directory: Path) -> None:
    found = stats(directory)
    gpu = next(one for one in found.measurements if one.measurement == "gpu")
    assert (gpu.rows, gpu.values, gpu.files, gpu.spool_rows) == (300, 600, 3, 1)
    assert gpu.first_ns == START_NS
    assert gpu.parquet_bytes == sum(
        p.path.stat().st_size for p in all_parts(directory / "parquet") if p.measurement == "gpu"
    )
    assert found.events == 5
    assert found.spool_bytes > 0
    assert found.as_dict()["measurements"][1]["bytes_per_value"] > 0


@pytest.mark.parametrize("harm", ["truncate", "flip"])
def test_a_damaged_parquet_file_is_found_and_set_aside_and_the_rest_stays(
    directory: Path, harm: str
) -> None:
    victim = next(p.path for p in all_parts(directory / "parquet") if p.measurement == "gpu")
    data = bytearray(victim.read_bytes())
    if harm == "truncate":
        victim.write_bytes(bytes(data[: len(data) // 2]))
    else:
        for at in range(20, 120):
            data[at] ^= 0xFF
        victim.write_bytes(bytes(data))
    (finding,) = list(verify(directory))
    assert finding.path == victim
    assert finding.loses_rows
    with pytest.raises(StoreUnavailableError, match="tocsin store repair"):
        gpu_rows(directory)
    assert any("set aside" in line for line in repair(directory))
    assert gpu_rows(directory) == 201
    assert len(list((directory / "damaged").iterdir())) == 1
    (finding,) = list(verify(directory))
    assert not finding.loses_rows


def test_a_damaged_spool_is_found_and_what_is_whole_is_kept(directory: Path) -> None:
    (number,) = list_segments(directory / "spool")
    path = segment_path(directory / "spool", number)
    torn = frame(b"an append that was cut off")[:30]
    path.write_bytes(b"garbage" * 9 + path.read_bytes() + torn)
    found = list(verify(directory))
    assert [finding.loses_rows for finding in found] == [True, False]
    repair(directory)
    assert gpu_rows(directory) == 301
    assert all(not finding.loses_rows for finding in verify(directory))


def test_a_damaged_database_is_rebuilt_and_events_come_back_from_parquet(directory: Path) -> None:
    path = directory / "tocsin.sqlite"
    path.write_bytes(b"no database at all " * 500)
    assert any("tocsin.sqlite" in text for text in texts(directory))
    done = repair(directory)
    assert any("rebuilt tocsin.sqlite" in line for line in done)
    assert "took 5 events from Parquet into the database again" in done
    store = Store(directory)
    assert len(store.events("n1")) == 5
    store.close()
    assert all(not finding.loses_rows for finding in verify(directory))


def test_pages_that_are_damaged_cost_their_rows_and_not_the_tables_before(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.database.define("CREATE TABLE verdicts (id INTEGER PRIMARY KEY, text TEXT)")
    with store.database.transaction() as connection:
        connection.executemany(
            "INSERT INTO verdicts (text) VALUES (?)", [("x" * 500,) for _ in range(200)]
        )
    store.close()
    path = tmp_path / "tocsin.sqlite"
    data = bytearray(path.read_bytes())
    data[-5 * 4096 : -4 * 4096] = b"\xff" * 4096
    path.write_bytes(bytes(data))
    assert texts(tmp_path)
    repair(tmp_path)
    store = Store(tmp_path)
    assert store.database.query("SELECT count(*) FROM verdicts")[0][0] > 100
    assert store.database.check() == []
    store.close()


def test_repair_keeps_its_hands_off_a_store_in_use(directory: Path) -> None:
    store = Store(directory)
    with pytest.raises(StoreUnavailableError, match="another process"):
        repair(directory)
    assert texts(directory) == [], "verify may look at any time"
    store.close()


def test_what_is_no_store_is_said(tmp_path: Path) -> None:
    assert texts(tmp_path / "nothing") == [f"{tmp_path / 'nothing'}: is no directory"]
