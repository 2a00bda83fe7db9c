"""Effects through ports: the manager's and the worker's turns, without any SDK."""
