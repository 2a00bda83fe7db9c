"""What a person does to a fleet, and reads of it."""
