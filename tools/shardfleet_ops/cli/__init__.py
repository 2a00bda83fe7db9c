"""
The `shardfleet` command: argument parsing over the rest of the library.

One module per command is one idea, however many commands there are.

`main` is the console script. It imports typer itself, because a plain `pip install shardfleet`
(what a Lambda function or a Spark executor needs) installs no command-line packages.
"""

import os
import signal
import sys
from importlib.util import find_spec

_NEEDED = ("typer", "rich")


def main() -> int:
    """
    Run the command line and return the process's exit code.

    Codes: 0 success, 1 the command failed, 2 the input or the installation is wrong; 130 and 143
    as in a shell, where Ctrl-C or SIGTERM ended it, with everything cleaned up.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"shardfleet: the command line needs {' and '.join(missing)}, not installed here. "
            "Install it with: pip install 'shardfleet[cli]' "
            "(or 'shardfleet[local]', which adds the embedded AWS).\n"
        )
        return 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:  # Also while much is imported.
        from shardfleet_ops.cli.app import run

        code = run()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    return _flushed(code)


def _flushed(code: int) -> int:
    """Return the exit code once all is written; what cannot be is one line, and nothing later."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # Else the interpreter tries again at its end, and says so in its own way.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not code and not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"shardfleet: standard output: {error.strerror}\n")
        return code or 1
    return code
