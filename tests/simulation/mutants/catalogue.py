"""All mutants."""

from __future__ import annotations

from tests.simulation.mutants.conditions import CONDITIONS
from tests.simulation.mutants.hazards import HAZARDS
from tests.simulation.mutants.lanes import LANES
from tests.simulation.mutants.museum import MUSEUM
from tests.simulation.mutants.objects import OBJECTS
from tests.simulation.mutants.pushes import PUSHES
from tests.simulation.mutants.setbacks import SETBACKS
from tests.simulation.mutants.sleep import SLEEPERS

MUTANTS = (*CONDITIONS, *HAZARDS, *OBJECTS, *LANES, *SLEEPERS, *SETBACKS, *PUSHES, *MUSEUM)
