"""A handler that a test steers by files: it hangs, or fails on records that say `poison`."""

import os
import time
from pathlib import Path

STEER = Path(os.environ["ALARMS_STEER"])


def handle(batch):
    while (STEER / "hang").exists():
        time.sleep(0.05)
    if not (STEER / "cured").exists():
        for record in batch:
            if record.data == b"poison":
                message = "poison"
                raise ValueError(message)
            batch.checkpoint(record)
