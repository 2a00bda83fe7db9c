"""
The CDK app of this repository: `make synth` or `npx cdk deploy`.

Without the CDK's command line the output goes to the folder named by CDK_OUTDIR, else `cdk.out`.
Findings of cdk-nag fail the synthesis.
"""

import os
from pathlib import Path

from shardfleet_cdk.synthesis import add_checks, build_app

app = build_app(outdir=Path(os.environ.get("CDK_OUTDIR", "cdk.out")))
add_checks(app)
app.synth()
