"""Hardware profiles: what one node is made of and what its sensors say when it is well.

Figures are round numbers of public data sheets (power limit, clocks, memory, link count);
thermal resistances and idle power are chosen so that a busy card sits where such cards sit
in practice. They shape pictures and tests, never a claim about real hardware.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of node. Temperatures in celsius, resistance in kelvin per watt."""

    name: str
    model: str
    gpus: int
    memory_bytes: float
    power_idle_watts: float
    power_limit_watts: float
    sm_clock_idle_hertz: float
    sm_clock_max_hertz: float
    memory_clock_hertz: float
    resistance_kelvin_per_watt: float
    inlet_celsius: float
    slowdown_celsius: float
    nvlinks: int
    pcie_generation: int
    remap_banks: int
    pci_addresses: tuple[str, ...]
    ib_ports: int
    driver: str = "550.90.07"

    def address(self, gpu: int) -> str:
        """PCI address of GPU ``gpu`` as tocsin writes it (``0000:9b:00``)."""
        if gpu < len(self.pci_addresses):
            return self.pci_addresses[gpu]
        return f"{gpu // len(self.pci_addresses):04x}:{0x10 + gpu % 0xE0:02x}:00"


_HGX8 = (
    "0000:1b:00",
    "0000:43:00",
    "0000:52:00",
    "0000:61:00",
    "0000:9b:00",
    "0000:c3:00",
    "0000:d1:00",
    "0000:df:00",
)
_QUAD = ("0000:01:00", "0000:41:00", "0000:81:00", "0000:c1:00")
_GRACE = ("0008:01:00", "0009:01:00", "0018:01:00", "0019:01:00")

PROFILES: dict[str, Hardware] = {
    profile.name: profile
    for profile in (
        Hardware(
            "a100-4",
            "NVIDIA A100-SXM4-80GB",
            gpus=4,
            memory_bytes=80 * 2.0**30,
            power_idle_watts=55,
            power_limit_watts=400,
            sm_clock_idle_hertz=210e6,
            sm_clock_max_hertz=1410e6,
            memory_clock_hertz=1593e6,
            resistance_kelvin_per_watt=0.085,
            inlet_celsius=24,
            slowdown_celsius=87,
            nvlinks=12,
            pcie_generation=4,
            remap_banks=640,
            pci_addresses=_QUAD,
            ib_ports=2,
        ),
        Hardware(
            "h100-8",
            "NVIDIA H100 80GB HBM3",
            gpus=8,
            memory_bytes=80 * 2.0**30,
            power_idle_watts=70,
            power_limit_watts=700,
            sm_clock_idle_hertz=345e6,
            sm_clock_max_hertz=1980e6,
            memory_clock_hertz=2619e6,
            resistance_kelvin_per_watt=0.057,
            inlet_celsius=24,
            slowdown_celsius=87,
            nvlinks=18,
            pcie_generation=5,
            remap_banks=2560,
            pci_addresses=_HGX8,
            ib_ports=8,
        ),
        Hardware(
            "b200-8",
            "NVIDIA B200",
            gpus=8,
            memory_bytes=180 * 2.0**30,
            power_idle_watts=140,
            power_limit_watts=1000,
            sm_clock_idle_hertz=120e6,
            sm_clock_max_hertz=1965e6,
            memory_clock_hertz=3996e6,
            resistance_kelvin_per_watt=0.040,
            inlet_celsius=25,
            slowdown_celsius=88,
            nvlinks=18,
            pcie_generation=5,
            remap_banks=4096,
            pci_addresses=_HGX8,
            ib_ports=8,
            driver="570.133.20",
        ),
        Hardware(
            "gb200-4",  # one compute tray of an NVL72 rack; Slurm sees trays as nodes
            "NVIDIA GB200",
            gpus=4,
            memory_bytes=186 * 2.0**30,
            power_idle_watts=160,
            power_limit_watts=1200,
            sm_clock_idle_hertz=120e6,
            sm_clock_max_hertz=2062e6,
            memory_clock_hertz=3996e6,
            resistance_kelvin_per_watt=0.026,
            inlet_celsius=30,
            slowdown_celsius=88,
            nvlinks=18,
            pcie_generation=5,
            remap_banks=4096,
            pci_addresses=_GRACE,
            ib_ports=4,
            driver="570.133.20",
        ),
    )
}
