"""Pure decisions: from snapshots to plans with a reason per decision. No I/O, no clock."""
