"""What a fleet has used, and what that costs."""
