"""One manager turn: what is found, planned, carried out, told."""
