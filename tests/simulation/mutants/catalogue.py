"""All mutants."""

from __future__ import annotations

from tests.simulation.mutants.conditions import CONDITIONS

MUTANTS = (*CONDITIONS,)
