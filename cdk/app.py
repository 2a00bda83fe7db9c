"""
The CDK app of this repository: `make synth` or `npx cdk deploy`.

Without the CDK's command line the output goes to the folder named by CDK_OUTDIR, else `cdk.out`.
Findings of cdk-nag fail the synthesis.
"""

import os
import signal
import sys
from pathlib import Path

for _number in (signal.SIGINT, signal.SIGTERM):  # Quietly, with a shell's code for it.
    signal.signal(_number, lambda number, _: sys.exit(128 + number))

# ruff: noqa: E402 - the import starts Node, which takes long enough to be interrupted.
from shardfleet_cdk.synthesis import add_checks, build_app, notes_of

app = build_app(outdir=Path(os.environ.get("CDK_OUTDIR", "cdk.out")))
add_checks(app)
assembly = app.synth()
if "CDK_CLI_VERSION" not in os.environ:  # The CDK's command line prints them itself.
    for note in notes_of(assembly):
        sys.stdout.write(f"{note}\n")
