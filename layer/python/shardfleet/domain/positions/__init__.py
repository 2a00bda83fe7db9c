"""Positions in a stream: as text, moved to a reader, set back."""
