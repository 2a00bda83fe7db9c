"""What a fleet will cost: one model for synthesis, `shardfleet cost`, the pages and the count."""
