"""Words for the numbers of IPMI sensors and events (IPMI 2.0, tables 42-1 to 42-3 and 43-15)."""

from __future__ import annotations

from types import MappingProxyType

SENSOR_TYPE = MappingProxyType(
    {
        0x01: "Temperature",
        0x02: "Voltage",
        0x03: "Current",
        0x04: "Fan",
        0x05: "Physical Security",
        0x06: "Platform Security",
        0x07: "Processor",
        0x08: "Power Supply",
        0x09: "Power Unit",
        0x0A: "Cooling Device",
        0x0B: "Other",
        0x0C: "Memory",
        0x0D: "Drive Slot",
        0x0E: "POST Memory Resize",
        0x0F: "System Firmware",
        0x10: "Event Logging Disabled",
        0x11: "Watchdog1",
        0x12: "System Event",
        0x13: "Critical Interrupt",
        0x14: "Button",
        0x15: "Module / Board",
        0x16: "Microcontroller",
        0x17: "Add-in Card",
        0x18: "Chassis",
        0x19: "Chip Set",
        0x1A: "Other FRU",
        0x1B: "Cable / Interconnect",
        0x1C: "Terminator",
        0x1D: "System Boot Initiated",
        0x1E: "Boot Error",
        0x1F: "OS Boot",
        0x20: "OS Critical Stop",
        0x21: "Slot / Connector",
        0x22: "System ACPI Power State",
        0x23: "Watchdog2",
        0x24: "Platform Alert",
        0x25: "Entity Presence",
        0x26: "Monitor ASIC",
        0x27: "LAN",
        0x28: "Management Subsys Health",
        0x29: "Battery",
        0x2A: "Session Audit",
        0x2B: "Version Change",
        0x2C: "FRU State",
    }
)

_THRESHOLD = tuple(
    f"{side} {level} going {way}"
    for side, level in (
        ("Lower", "Non-critical"),
        ("Lower", "Critical"),
        ("Lower", "Non-recoverable"),
        ("Upper", "Non-critical"),
        ("Upper", "Critical"),
        ("Upper", "Non-recoverable"),
    )
    for way in ("low", "high")
)

# Event/reading type -> words by offset.
GENERIC = MappingProxyType(
    {
        0x01: _THRESHOLD,
        0x02: ("Transition to Idle", "Transition to Active", "Transition to Busy"),
        0x03: ("State Deasserted", "State Asserted"),
        0x04: ("Predictive Failure Deasserted", "Predictive Failure Asserted"),
        0x05: ("Limit Not Exceeded", "Limit Exceeded"),
        0x06: ("Performance Met", "Performance Lags"),
        0x07: (
            "Transition to OK",
            "Transition to Non-Critical from OK",
            "Transition to Critical from less severe",
            "Transition to Non-recoverable from less severe",
            "Transition to Non-Critical from more severe",
            "Transition to Critical from Non-recoverable",
            "Transition to Non-recoverable",
            "Monitor",
            "Informational",
        ),
        0x08: ("Device Absent", "Device Present"),
        0x09: ("Device Disabled", "Device Enabled"),
        0x0A: (
            "Transition to Running",
            "Transition to In Test",
            "Transition to Power Off",
            "Transition to On Line",
            "Transition to Off Line",
            "Transition to Off Duty",
            "Transition to Degraded",
            "Transition to Power Save",
            "Install Error",
        ),
        0x0B: (
            "Fully Redundant",
            "Redundancy Lost",
            "Redundancy Degraded",
            "Non-Redundant: Sufficient from Redundant",
            "Non-Redundant: Sufficient from Insufficient",
            "Non-Redundant: Insufficient Resources",
            "Redundancy Degraded from Fully Redundant",
            "Redundancy Degraded from Non-Redundant",
        ),
        0x0C: ("D0 Power State", "D1 Power State", "D2 Power State", "D3 Power State"),
    }
)

# Sensor type -> words by offset, for event/reading type 6Fh (sensor-specific).
SPECIFIC = MappingProxyType(
    {
        0x05: (
            "General Chassis Intrusion",
            "Drive Bay Intrusion",
            "I/O Card Area Intrusion",
            "Processor Area Intrusion",
            "LAN Leash Lost",
            "Unauthorized Dock",
            "Fan Area Intrusion",
        ),
        0x06: (
            "Secure Mode Violation Attempt",
            "User Password Violation",
            "Setup Password Violation",
            "Network Boot Password Violation",
            "Other Password Violation",
            "Out-of-band Access Password Violation",
        ),
        0x07: (
            "IERR",
            "Thermal Trip",
            "FRB1/BIST Failure",
            "FRB2/Hang in POST Failure",
            "FRB3/Processor Startup Failure",
            "Configuration Error",
            "SM BIOS Uncorrectable CPU-complex Error",
            "Presence detected",
            "Processor Disabled",
            "Terminator Presence Detected",
            "Throttled",
            "Uncorrectable machine check exception",
            "Correctable machine check error",
        ),
        0x08: (
            "Presence detected",
            "Failure detected",
            "Predictive Failure",
            "Power Supply AC lost",
            "AC lost or out-of-range",
            "AC out-of-range, but present",
            "Configuration error",
            "Inactive (in standby)",
        ),
        0x09: (
            "Power off/down",
            "Power cycle",
            "240VA power down",
            "Interlock power down",
            "AC lost",
            "Soft-power control failure",
            "Failure detected",
            "Predictive failure",
        ),
        0x0C: (
            "Correctable ECC",
            "Uncorrectable ECC",
            "Parity",
            "Memory Scrub Failed",
            "Memory Device Disabled",
            "Correctable ECC logging limit reached",
            "Presence detected",
            "Configuration Error",
            "Spare",
            "Throttled",
            "Critical Overtemperature",
        ),
        0x0D: (
            "Drive Present",
            "Drive Fault",
            "Predictive Failure",
            "Hot Spare",
            "Parity Check In Progress",
            "In Critical Array",
            "In Failed Array",
            "Rebuild In Progress",
            "Rebuild Aborted",
        ),
        0x0F: ("System Firmware Error", "System Firmware Hang", "System Firmware Progress"),
        0x10: (
            "Correctable memory error logging disabled",
            "Event logging disabled",
            "Log area reset/cleared",
            "All event logging disabled",
            "Log full",
            "Log almost full",
        ),
        0x11: (
            "BIOS Reset",
            "OS Reset",
            "OS Shutdown",
            "OS Power Down",
            "OS Power Cycle",
            "OS NMI/Diagnostic Interrupt",
            "OS Expired",
            "OS pre-timeout Interrupt",
        ),
        0x12: (
            "System Reconfigured",
            "OEM System boot event",
            "Undetermined system hardware failure",
            "Entry added to auxiliary log",
            "PEF Action",
            "Timestamp Clock Sync",
        ),
        0x13: (
            "Front Panel NMI/Diagnostic Interrupt",
            "Bus Timeout",
            "I/O Channel check NMI",
            "Software NMI",
            "PCI PERR",
            "PCI SERR",
            "EISA failsafe timeout",
            "Bus Correctable error",
            "Bus Uncorrectable error",
            "Fatal NMI",
            "Bus Fatal Error",
            "Bus Degraded",
        ),
        0x14: ("Power Button pressed", "Sleep Button pressed", "Reset Button pressed"),
        0x19: ("Soft Power Control Failure", "Thermal Trip"),
        0x1B: ("Cable connected", "Cable configuration error"),
        0x1D: (
            "Initiated by power up",
            "Initiated by hard reset",
            "Initiated by warm reset",
            "User requested PXE boot",
            "Automatic boot to diagnostic",
            "OS initiated hard reset",
            "OS initiated warm reset",
            "System Restart",
        ),
        0x1E: (
            "No bootable media",
            "Non-bootable disk in drive",
            "PXE server not found",
            "Invalid boot sector",
            "Timeout waiting for selection",
        ),
        0x1F: (
            "A: boot completed",
            "C: boot completed",
            "PXE boot completed",
            "Diagnostic boot completed",
            "CD-ROM boot completed",
            "ROM boot completed",
            "boot completed - device not specified",
        ),
        0x20: (
            "Error during system startup",
            "Run-time critical stop",
            "OS graceful stop",
            "OS graceful shutdown",
            "PEF initiated soft shutdown",
            "Agent not responding",
        ),
        0x21: (
            "Slot Fault Status",
            "Slot Identify Status",
            "Device Installed/Attached",
            "Ready for Device Installation",
            "Ready for Device Removal",
            "Slot Power is Off",
            "Device Removal Request",
            "Interlock",
            "Slot is Disabled",
            "Spare Device",
        ),
        0x22: (
            "S0/G0: working",
            "S1: sleeping",
            "S2: sleeping",
            "S3: sleeping",
            "S4: non-volatile sleep",
            "S5/G2: soft-off",
            "S4/S5: soft-off",
            "G3: mechanical off",
        ),
        0x23: (
            "Timer expired",
            "Hard reset",
            "Power down",
            "Power cycle",
            "reserved",
            "reserved",
            "reserved",
            "reserved",
            "Timer interrupt",
        ),
        0x25: ("Entity Present", "Entity Absent", "Entity Disabled"),
        0x27: ("LAN Heartbeat Lost", "LAN Heartbeat"),
        0x28: (
            "Sensor access degraded or unavailable",
            "Controller access degraded or unavailable",
            "Management controller off-line",
            "Management controller unavailable",
            "Sensor failure",
            "FRU failure",
        ),
        0x29: ("Low", "Failed", "Presence detected"),
        0x2B: (
            "Hardware change detected",
            "Firmware or software change detected",
            "Hardware incompatibility detected",
            "Firmware or software incompatibility detected",
        ),
        0x2C: (
            "Not Installed",
            "Inactive",
            "Activation Requested",
            "Activation in Progress",
            "Active",
            "Deactivation Requested",
            "Deactivation in Progress",
            "Communication lost",
        ),
    }
)

# Base unit of an SDR -> how collectors.bmc.points spells it.
UNIT = MappingProxyType(
    {
        1: "degrees C",
        2: "degrees F",
        3: "degrees K",
        4: "Volts",
        5: "Amps",
        6: "Watts",
        7: "Joules",
        18: "RPM",
    }
)


def event_words(sensor_type: int, event_type: int, offset: int) -> str:
    """Words for one state of a sensor.

    >>> event_words(0x08, 0x6F, 3)
    'Power Supply AC lost'
    """
    table = SPECIFIC.get(sensor_type, ()) if event_type == 0x6F else GENERIC.get(event_type, ())
    if offset < len(table):
        return table[offset]
    return f"event type 0x{event_type:02x} state {offset}"


def type_words(sensor_type: int) -> str:
    """Name of a sensor type."""
    known = SENSOR_TYPE.get(sensor_type)
    return known or ("OEM" if sensor_type >= 0xC0 else f"type 0x{sensor_type:02x}")
