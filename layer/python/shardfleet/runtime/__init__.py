"""Composition roots for Lambda: environment to configuration to adapters to engine."""
