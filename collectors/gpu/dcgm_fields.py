"""DCGM's fields that mean something to us, by id: the one name of a field that never changes.

A field has a short name (the header of ``dcgmi dmon``), a tag (``dcgm_`` + tag was its name in
dcgm-exporter 1.x) and a symbol (its name in later exporters, without DCGM_FI_DEV_ where it begins
so); many symbols were renamed since.
Source: NVIDIA/DCGM, dcgm_fields.h and dcgm_fields.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True)
class DcgmField:
    """One field: DCGM's ``number``, our field and the factor from DCGM's unit to ours.

    ``board`` tells that it concerns the board even when it is told for a MIG instance.
    ``rank``: of two DCGM fields for one of ours the lower one wins.
    """

    number: int
    ours: str
    scale: float
    short: str
    tag: str
    symbols: tuple[str, ...]
    board: bool = True
    rank: int = 0


def _field(
    number: int,
    ours: str,
    scale: float,
    names: str,
    *symbols: str,
    board: bool = True,
    rank: int = 0,
) -> DcgmField:
    short, tag = names.split()
    return DcgmField(number, ours, scale, short, tag, symbols, board, rank)


FIELDS: tuple[DcgmField, ...] = (
    _field(100, "sm_clock_hertz", 1e6, "SMCLK sm_clock", "SM_CLOCK"),
    _field(101, "memory_clock_hertz", 1e6, "MMCLK memory_clock", "MEM_CLOCK"),
    _field(113, "sm_clock_max_hertz", 1e6, "SMMAX sm_max_clock", "MAX_SM_CLOCK"),
    _field(
        140,
        "memory_temperature_celsius",
        1,
        "MMTMP memory_temp",
        "MEMORY_TEMP",
        "MEMORY_TEMP_CELSIUS",
    ),
    _field(150, "temperature_celsius", 1, "TMPTR gpu_temp", "GPU_TEMP", "GPU_TEMP_CELSIUS"),
    _field(155, "power_watts", 1, "POWER power_usage", "POWER_USAGE", "BOARD_POWER_WATTS"),
    _field(
        157,
        "power_watts",
        1,
        "POWINST power_usage_instant",
        "POWER_USAGE_INSTANT",
        "BOARD_POWER_RAW_WATTS",
        rank=1,
    ),
    _field(
        156,
        "energy_joules_total",
        1e-3,
        "TOTEC total_energy_consumption",
        "TOTAL_ENERGY_CONSUMPTION",
    ),
    _field(
        164,
        "power_limit_watts",
        1,
        "EPLMT enforced_power_limit",
        "ENFORCED_POWER_LIMIT",
        "BOARD_POWER_LIMIT_ENFORCED_WATTS",
    ),
    _field(
        160,
        "power_limit_watts",
        1,
        "PMLMT power_management_limit",
        "POWER_MGMT_LIMIT",
        "BOARD_POWER_LIMIT_REQUESTED_WATTS",
        rank=1,
    ),
    _field(191, "fan_speed_ratio", 0.01, "FANSP fan_speed", "FAN_SPEED"),
    _field(
        202,
        "pcie_replays_total",
        1,
        "RPCTR pcie_replay_counter",
        "PCIE_REPLAY_COUNTER",
        "PCIE_REPLAY_TOTAL",
    ),
    _field(
        203,
        "utilization_ratio",
        0.01,
        "GPUTL gpu_utilization",
        "GPU_UTIL",
        "GPU_UTIL_RATIO",
        board=False,
    ),
    _field(
        204,
        "memory_utilization_ratio",
        0.01,
        "MCUTL mem_copy_utilization",
        "MEM_COPY_UTIL",
        board=False,
    ),
    _field(235, "pcie_link_generation_max", 1, "PCIMG pcie_max_link_gen", "PCIE_MAX_LINK_GEN"),
    _field(236, "pcie_link_width_max", 1, "PCIMW pcie_max_link_width", "PCIE_MAX_LINK_WIDTH"),
    _field(237, "pcie_link_generation", 1, "PCILG pcie_link_gen", "PCIE_LINK_GEN"),
    _field(238, "pcie_link_width", 1, "PCILW pcie_link_width", "PCIE_LINK_WIDTH"),
    _field(250, "memory_total_bytes", MIB, "FBTTL fb_total", "FB_TOTAL", board=False),
    _field(252, "memory_used_bytes", MIB, "FBUSD fb_used", "FB_USED", board=False),
    _field(312, "ecc_corrected_total", 1, "ESATL ecc_sbe_aggregate_total", "ECC_SBE_AGG_TOTAL"),
    _field(
        310,
        "ecc_corrected_total",
        1,
        "ESVTL ecc_sbe_volatile_total",
        "ECC_SBE_VOL_TOTAL",
        rank=1,
    ),
    _field(313, "ecc_uncorrected_total", 1, "EDATL ecc_dbe_aggregate_total", "ECC_DBE_AGG_TOTAL"),
    _field(
        311,
        "ecc_uncorrected_total",
        1,
        "EDVTL ecc_dbe_volatile_total",
        "ECC_DBE_VOL_TOTAL",
        rank=1,
    ),
    _field(
        346,
        "ecc_sram_threshold_exceeded",
        1,
        "ECCTHRSRM ecc_threshold_sram",
        "THRESHOLD_SRM",
        "SRAM_EXCEEDED",
    ),
    *(
        _field(
            385 + place,
            f"remap_banks_{level}",
            1,
            f"RRA{level[0].upper()} remap_rows_avail_{level}",
            f"BANKS_REMAP_ROWS_AVAIL_{level.upper()}",
            f"BANK_REMAP_AVAIL_{level.upper()}",
        )
        for place, level in enumerate(("max", "high", "partial", "low", "none"))
    ),
    _field(
        390,
        "retired_pages_single_total",
        1,
        "RPSBE retired_pages_sbe",
        "RETIRED_SBE",
        "PAGE_RETIRED_SBE_TOTAL",
    ),
    _field(
        391,
        "retired_pages_double_total",
        1,
        "RPDBE retired_pages_dbe",
        "RETIRED_DBE",
        "PAGE_RETIRED_DBE_TOTAL",
    ),
    _field(
        392,
        "retired_pages_pending",
        1,
        "RPPEN retired_pages_pending",
        "RETIRED_PENDING",
        "PAGE_RETIRED_PENDING",
    ),
    _field(
        393,
        "remapped_rows_uncorrected_total",
        1,
        "URMPS uncorrectable_remapped_rows",
        "UNCORRECTABLE_REMAPPED_ROWS",
        "ROW_REMAP_UNCORRECTABLE_TOTAL",
    ),
    _field(
        394,
        "remapped_rows_corrected_total",
        1,
        "CRMPS correctable_remapped_rows",
        "CORRECTABLE_REMAPPED_ROWS",
        "ROW_REMAP_CORRECTABLE_TOTAL",
    ),
    _field(
        395,
        "row_remap_failed",
        1,
        "RRF row_remap_failure",
        "ROW_REMAP_FAILURE",
        "ROW_REMAP_FAILED",
    ),
    _field(396, "row_remap_pending", 1, "RRP row_remap_pending", "ROW_REMAP_PENDING"),
    _field(
        497,
        "nvlink_crc_errors_total",
        1,
        "NLCRC nvlink_crc_err",
        "NVLINK_ERROR_DL_CRC",
        "NVLINK_CRC_ERROR_TOTAL",
    ),
    _field(
        409,
        "nvlink_crc_errors_total",
        1,
        "NFELT nvlink_flit_crc_error_count_total",
        "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "NVLINK_CRC_FLIT_ERROR_TOTAL",
        rank=1,
    ),
    _field(
        1206,
        "nvlink_crc_errors_total",
        1,
        "NLRCVE nvlink_rcv_err",
        "NVLINK_COUNT_RX_ERRORS",
        "NVLINK_RX_ERROR_TOTAL",
        rank=2,
    ),
    _field(
        499,
        "nvlink_replays_total",
        1,
        "NLREP nvlink_replay_err",
        "NVLINK_ERROR_DL_REPLAY",
        "NVLINK_REPLAY_TOTAL",
    ),
    _field(
        429,
        "nvlink_replays_total",
        1,
        "NRELT nvlink_replay_error_count_total",
        "NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "NVLINK_REPLAY_ERROR_TOTAL",
        rank=1,
    ),
    _field(
        498,
        "nvlink_recoveries_total",
        1,
        "NLREC nvlink_recovery_err",
        "NVLINK_ERROR_DL_RECOVERY",
        "NVLINK_RECOVERY_TOTAL",
    ),
    _field(
        439,
        "nvlink_recoveries_total",
        1,
        "NRCLT nvlink_recovery_error_count_total",
        "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "NVLINK_RECOVERY_ERROR_TOTAL",
        rank=1,
    ),
    _field(
        1213,
        "nvlink_recoveries_total",
        1,
        "NLLR nvlink_link_recovery",
        "NVLINK_COUNT_LINK_RECOVERY_EVENTS",
        "NVLINK_RECOVERY_EVENT_TOTAL",
        rank=2,
    ),
    _field(
        1001,
        "graphics_activity_ratio",
        1,
        "GRACT gr_engine_active",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
        board=False,
    ),
    _field(
        1002,
        "sm_activity_ratio",
        1,
        "SMACT sm_active",
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_SM_UTIL_RATIO",
        board=False,
    ),
    _field(67, "mig_enabled", 1, "MGMOD mig_mode", "MIG_MODE"),
    _field(
        1523,
        "recovery_action",
        1,
        "GPURECOV gpu_recovery_action",
        "GET_GPU_RECOVERY_ACTION",
        "GPU_RECOVERY_ACTION",
    ),
)
THROTTLE = _field(
    112,
    "",
    1,
    "DVCCTR current_clocks_event_reasons",
    "CLOCK_THROTTLE_REASONS",
    "CLOCKS_EVENT_REASONS",
)
XID = _field(230, "", 1, "XIDER xid_errors", "XID_ERRORS", "XID_ERROR")
FABRIC = _field(170, "", 1, "FMSTA fabric_manager_status", "FABRIC_MANAGER_STATUS")
MEMORY_FREE = _field(251, "", MIB, "FBFRE fb_free", "FB_FREE", board=False)
MEMORY_RESERVED = _field(253, "", MIB, "FBRSV fb_resv", "FB_RESERVED", board=False)

ALL = (*FIELDS, THROTTLE, XID, FABRIC, MEMORY_FREE, MEMORY_RESERVED)
BY_SHORT = {field.short: field for field in ALL}
BY_NUMBER = {field.number: field for field in ALL}
BY_SYMBOL = {
    **{f"dcgm_{field.tag}": field for field in ALL},
    **{
        symbol if symbol.startswith("DCGM_") else f"DCGM_FI_DEV_{symbol}": field
        for field in ALL
        for symbol in field.symbols
    },
}
