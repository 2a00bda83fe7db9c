"""
The embedded AWS: its server process, and each service's corrections.

Two dozen modules, and one idea: a server, and for each service what it must do otherwise to be
like the real one. They know each other only through the server.
"""
