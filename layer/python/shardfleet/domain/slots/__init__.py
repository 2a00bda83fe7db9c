"""Worker slots: their states, how many there are, what is done next."""
