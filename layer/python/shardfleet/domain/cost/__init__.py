"""What a fleet costs, and how eager its budget lets it be."""
