"""Who gets which lease, by count or by load."""
