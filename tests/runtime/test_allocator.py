"""What the worker's variables say, glibc understands: asked of glibc itself, in a process."""

import os
import platform
import subprocess
import sys

import pytest

from shardfleet.config import ALLOCATOR

# Each of four threads takes and keeps 1 MB in pieces of 1 KiB; then 16 MB are taken, and let go.
PROGRAM = """
import ctypes, threading
kept = []
def work(ready):
    kept.append([bytes(1024 + n % 2) for n in range(1000)])
    ready.wait()
ready = threading.Barrier(4)
threads = [threading.Thread(target=work, args=(ready,)) for _ in range(4)]
[each.start() for each in threads]
[each.join() for each in threads]
bytearray(16 * 1024 * 1024)
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
out = libc.fopen(b"/dev/stdout", b"w")
libc.malloc_info(0, ctypes.c_void_p(out))
libc.fclose(ctypes.c_void_p(out))
"""

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the variables are glibc's, as Lambda has it"
)


def heaps(variables):
    """Return how many heaps a process had, and how many bytes the system gave for them."""
    environment = {"PATH": os.environ["PATH"], **variables}
    words = [sys.executable, "-c", PROGRAM]
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    last = [line for line in said.stdout.splitlines() if line.startswith('<system type="current"')]
    return said.stdout.count("<heap nr="), int(last[-1].split('"')[3])


def test_all_threads_share_one_heap_which_keeps_what_a_page_took():
    default_heaps, default_bytes = heaps({})
    ours, ours_bytes = heaps(ALLOCATOR)

    assert default_heaps > 1
    assert ours == 1
    assert default_bytes < 16 * 1024 * 1024 <= ours_bytes
