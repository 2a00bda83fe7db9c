"""The embedded AWS: its server process, and each service's corrections."""
