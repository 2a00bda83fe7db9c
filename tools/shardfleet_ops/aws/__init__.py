"""AWS calls that operators alone make: the owner index, records kept in S3."""
