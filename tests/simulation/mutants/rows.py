"""
The rows of the museum and of the bug classes, and why some have no mutant.

The rows are those of the design's list of bugs of others and of docs/protocol.md §8.
"""

from __future__ import annotations

from collections.abc import Mapping

_NO_LOCK_CLIENT = "there is no lock client, and no leader thread: a lock of a few seconds instead"

WITHOUT_MUTANT: Mapping[str, str] = {
    "§8 row 16": f"{_NO_LOCK_CLIENT}, prolonged by the very turn that does the work",
    "§8 row 18": "there is no migration between modes of KCL 2 and 3: a table is used as it is",
    "§8 row 19": "foreign items are refused by the adapters (tests/adapters, tests/fuzz)",
    "§8 row 24": "there is no prefetch queue whose limit could be 0 or 1",
    "moto #1475": "about a mock: the memory stream is judged by the contract suite instead",
}
"""Row or tracker → why it cannot be told in a simulation."""

ROWS = (
    *(f"§8 row {row}" for row in range(1, 26)),
    *("§8 row 5a", "§8 row 8a", "§8 row 8b"),
    *("KCL #185, #837", "zio-kinesis #1083", "vmware-go-kcl-v2 #14", "lifion-kinesis #332"),
    *("#1729, #1743, #1765", "async-kinesis #69", "kinesumer #1", "async-kinesis #26"),
    *("vmware-go-kcl #77", "kinesis-python", "fs2-aws #436", "KPL #439", "FLINK-38814"),
    *("KCL #461", "KCL #10", "KCL #1803", "#1354, #1788", "moto #1475"),
)
"""Every row, by its number or by its tracker."""
