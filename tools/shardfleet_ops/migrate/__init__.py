"""What a KCL 2 fleet needs before it is followed."""
