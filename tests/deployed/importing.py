"""
Run inside the root: imports every module of the layers, and tries what Lambda does not allow.

It is no module of the tests: nothing but the standard library, and what the assets bring.
"""

import errno
import importlib
import json
import multiprocessing
import pkgutil
import socket
import sys
from pathlib import Path

OPT = Path("/opt/python")
# Spark brings them; what needs them is in the library, and never imported in Lambda.
OF_SPARK = {"numpy", "pyarrow"}


def refused(act):
    """Return the name of the error that an act fails with, None if it does not fail."""
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return None


def is_of_spark(name):
    """Import a module; say whether it lacks what only Spark has."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OF_SPARK:
            raise
        return True
    return False


def main():
    """Print what was found, as JSON."""
    names = [each.name for each in pkgutil.walk_packages([str(OPT / "shardfleet")], "shardfleet.")]
    others = ("msgspec", "pybase64", "google.protobuf", "aws_lambda_powertools", "botocore")
    sparks = [name for name in [*names, *others] if is_of_spark(name)]
    handler = importlib.import_module("handler")
    missing = [
        name
        for name in names
        if name not in sparks
        and ((cached := sys.modules[name].__cached__) is None or not Path(cached).exists())
    ]
    places = {name: sys.modules[name].__file__ for name in ("msgspec", "pybase64", "botocore")}
    sys.stdout.write(
        json.dumps(
            {
                "python": sys.version.split()[0],
                "modules": len(names),
                "of_spark": sparks,
                "without_byte_code": len(missing),
                "places": places,
                "handler": handler.__file__,
                "write": refused(lambda: (OPT / "a").write_text("")),
                "semaphore": refused(multiprocessing.Lock),
                "connect": refused(lambda: socket.create_connection(("192.0.2.1", 443), 5)),
            }
        )
    )


main()
