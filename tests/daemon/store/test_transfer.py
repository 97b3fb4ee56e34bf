import gzip
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectors.sample import Sample, sample
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.parts import DAY_NS, all_parts
from daemon.store.tables import to_rows
from daemon.store.transfer import export_directory, import_directory
from models.telemetry import Telemetry, TelemetryWriter
from tests.daemon.power import Disk

START_NS = 1_780_012_800_000_000_000 // DAY_NS * DAY_NS


def rows(store: Store, measurement: str = "gpu") -> list[dict[str, Any]]:
    return to_rows(store.read(measurement, 0, 2**62))


def filled(directory: Path) -> Store:
    store = Store(directory)
    store.append(
        sample(
            "gpu",
            START_NS + hour * 3600 * 10**9,
            {"power_watts": float(hour)} if hour % 2 else {"temperature_celsius": 30.5},
            node=f"n{hour % 3}",
            gpu="0",
            uuid=f"GPU-{hour % 3}",
        )
        for hour in range(60)
    )
    text = {"text": "Xid 79, fallen off the bus", "severity": 3.0, "device": "0000:9b:00"}
    store.append([sample("event", START_NS + 7, text, node="n1", kind="xid", code="79")])
    store.commit()
    return store


@pytest.mark.parametrize("csv", [False, True])
def test_export_and_import_give_the_same_rows(tmp_path: Path, csv: bool) -> None:
    store = filled(tmp_path / "a")
    store.roll(START_NS)
    counts = export_directory(store, tmp_path / "telemetry", csv=csv)
    assert counts == {"event": 1, "gpu": 60}
    other = Store(tmp_path / "b")
    for _ in range(2):  # the second time changes nothing
        assert import_directory(other, tmp_path / "telemetry") == counts
        assert rows(other) == rows(store)
        assert rows(other, "event") == rows(store, "event")
    assert [e.text for e in other.events("n1")] == ["Xid 79, fallen off the bus"]
    store.close()
    other.close()


def test_what_is_exported_is_a_telemetry_directory(tmp_path: Path) -> None:
    store = filled(tmp_path / "a")
    export_directory(store, tmp_path / "out", START_NS, START_NS + DAY_NS)
    found: list[Sample] = []
    for _, chunks in Telemetry(tmp_path / "out").windows(3600 * 10**9):
        for chunk in chunks:
            found.extend(chunk.samples())
    assert len([s for s in found if s.measurement == "gpu"]) == 24
    times = [s.time_ns for s in found if s.measurement == "gpu"]
    assert times == sorted(times)
    with pytest.raises(FileExistsError):
        export_directory(store, tmp_path / "out")
    store.close()


def test_a_day_is_imported_as_one_file_and_not_numbers_are_absent(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / "t") as writer:
        times = START_NS + np.arange(0, 86_400, 60, dtype=np.int64) * 10**9
        values = np.where(np.arange(len(times)) % 5 == 0, np.nan, 1.5)
        writer.columns(
            "gpu",
            ((("gpu", "0"), ("node", "n1"), ("uuid", "u")),),
            np.zeros(len(times), np.int64),
            times,
            {"power_watts": values, "ecc_corrected_total": np.full(len(times), np.nan)},
        )
    store = Store(tmp_path / "s")
    assert import_directory(store, tmp_path / "t") == {"gpu": 1152}, (
        "a row without a value is no reading"
    )
    found = rows(store)
    assert len(found) == 1152
    assert all("ecc_corrected_total" not in row for row in found)
    assert len(list(all_parts(store.parquet_directory))) <= 5
    store.close()


def test_foreign_csv_with_time_as_text_and_gzip(tmp_path: Path) -> None:
    lines = (
        "2026-06-01T12:00:00Z,n1,0,u,70.5",
        "2026-06-01 12:00:10,n1,0,u,71",
        "2026-06-02,n1,0,u,",
    )
    text = "\n".join(["time,node,gpu,uuid,power_watts", *lines, ""])
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "gpu.csv.gz").write_bytes(gzip.compress(text.encode()))
    store = Store(tmp_path / "s")
    import_directory(store, tmp_path / "t")
    assert [row["power_watts"] for row in rows(store)] == [70.5, 71.0], "an empty row is no reading"
    store.close()


def test_a_directory_without_tables_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    (tmp_path / "t").mkdir()
    with pytest.raises(FileNotFoundError, match="no table"):
        import_directory(store, tmp_path / "t")
    store.close()


@pytest.mark.parametrize("late", [{"fan_speed_ratio": 0.5}, {"power_watts": "much"}])
def test_columns_that_come_while_they_are_exported_are_not_left_out_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: dict[str, float | str]
) -> None:
    store = filled(tmp_path / "a")
    real = store.hours

    def hours(*arguments: Any, **more: Any) -> Iterator[Any]:
        for number, table in enumerate(real(*arguments, **more)):
            yield table
            if number == 0:  # a row of a later hour arrives while the first one is written
                store.append([sample("gpu", START_NS + 58 * 3600 * 10**9 + 1, late, node="n1")])
                store.commit()

    monkeypatch.setattr(store, "hours", hours)
    with pytest.raises(StoreUnavailableError, match="gpu: its columns changed while"):
        export_directory(store, tmp_path / "out", measurements=["gpu"])
    assert list((tmp_path / "out").iterdir()) == []
    assert export_directory(store, tmp_path / "out", measurements=["gpu"]) == {"gpu": 61}
    store.close()


def test_a_csv_never_stands_there_without_what_it_cannot_say_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed right after it got its name, it must still be read as what it is."""
    store = Store(tmp_path / "a")
    store.append([sample("rack/pdu", START_NS, {"amperes": 2.0}, node="n1", phase="3")])
    store.commit()

    class KilledError(BaseException):
        pass

    rename = Path.rename

    def killed(self: Path, target: Path) -> Path:
        rename(self, target)
        raise KilledError

    with monkeypatch.context() as inside:
        inside.setattr(Path, "rename", killed)
        with pytest.raises(KilledError):
            export_directory(store, tmp_path / "out", csv=True)
    other = Store(tmp_path / "b")
    assert import_directory(other, tmp_path / "out") == {"rack/pdu": 1}
    assert rows(other, "rack/pdu") == rows(store, "rack/pdu")
    store.close()
    other.close()


@pytest.mark.parametrize("csv", [False, True])
def test_a_power_cut_after_an_export_leaves_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, csv: bool
) -> None:
    store = filled(tmp_path / "a")
    (tmp_path / "disk").mkdir()
    for seed in range(5):
        out = tmp_path / "disk" / f"out{seed}"
        out.mkdir()
        disk = Disk(out, random.Random(seed))
        with disk.watching(monkeypatch):
            export_directory(store, out, csv=csv)
            disk.write(tmp_path / f"found{seed}")
        for file in out.iterdir():
            found = tmp_path / f"found{seed}" / file.name
            assert found.read_bytes() == file.read_bytes()
    store.close()
