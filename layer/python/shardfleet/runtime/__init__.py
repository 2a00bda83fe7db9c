"""Composition roots for Lambda, one idea: environment to configuration to adapters to engine."""
