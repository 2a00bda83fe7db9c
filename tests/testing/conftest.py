"""Pytest runs of pytest: the plugin is seen from the outside."""

pytest_plugins = ["pytester"]
