"""What people do to a fleet from their own machines: the command line, and what it is made of."""
