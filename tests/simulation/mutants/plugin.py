"""A pytest plugin: tests run on an engine with the bug that SHARDFLEET_MUTANT names."""

from __future__ import annotations

import os

from tests.simulation.mutants.catalogue import MUTANTS
from tests.simulation.mutants.hook import infect

_NAME = os.environ.get("SHARDFLEET_MUTANT", "")
if _NAME:
    infect(next(mutant for mutant in MUTANTS if mutant.name == _NAME))
