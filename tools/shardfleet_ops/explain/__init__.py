"""What a person asks: what happened, why, where, what is wrong."""
