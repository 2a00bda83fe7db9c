"""Positions that a person gives: imported from elsewhere, or set back."""
