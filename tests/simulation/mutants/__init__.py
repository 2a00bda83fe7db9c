"""Bugs put into the engine, one exact replacement of source text each; see docs/proof.md."""
