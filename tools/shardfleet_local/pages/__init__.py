"""What the pages that we draw share: their look, axes with units, and tables; text is escaped."""
