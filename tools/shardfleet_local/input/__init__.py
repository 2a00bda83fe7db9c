"""A user's records in files: how they are packed and written is seen from their first bytes."""
