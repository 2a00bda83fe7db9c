"""Memory ports and a virtual clock: the public test kit. Imports no adapter and no SDK."""
