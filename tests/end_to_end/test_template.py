"""What is deployed locally is what `make synth` writes, and it deploys with IAM enforced."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardfleet.local import EmbeddedAws, deploy

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("cdk", "functions", "layer")
LEFTOVERS = shutil.ignore_patterns("__pycache__", "*.pyc", ".*_cache")
# Installing the third-party packages needs a package index; the template does not depend on it.
WITHOUT_BUNDLING = json.dumps({"aws:cdk:bundling-stacks": []})


def clean_checkout(folder):
    """Copy what the synthesis reads to a folder that has never seen one."""
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=LEFTOVERS)
    shutil.copy(ROOT / "cdk.json", folder)
    return folder


def make_synth(checkout):
    """Do what the recipe of `make synth` does, with the checkout's own sources."""
    sources = [checkout / "cdk", checkout / "layer/python"]
    environment = os.environ | {
        "CDK_OUTDIR": "cdk.out",
        "CDK_CONTEXT_JSON": WITHOUT_BUNDLING,
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
    }
    subprocess.run([sys.executable, "cdk/app.py"], cwd=checkout, env=environment, check=True)
    return checkout / "cdk.out"


def test_make_synth_runs_the_app_that_is_tested_here():
    makefile = (ROOT / "Makefile").read_text("utf-8")

    assert "CDK_OUTDIR=cdk.out $(BIN)/python cdk/app.py" in makefile


def test_the_deployed_template_is_the_one_make_synth_writes_in_a_clean_directory(tmp_path):
    from shardfleet_cdk.synthesis import STACK_NAME, synthesize  # noqa: PLC0415 - it starts Node.

    here = synthesize(tmp_path / "here").read_text("utf-8")
    assembly = make_synth(clean_checkout(tmp_path / "clean"))
    with EmbeddedAws(enforce_iam=True) as aws:
        deploy(tmp_path / "here", STACK_NAME, aws)
        deployed = aws.client("cloudformation").get_template(StackName=STACK_NAME)["TemplateBody"]

    written = (assembly / f"{STACK_NAME}.template.json").read_text("utf-8")
    assert written == here
    assert deployed == json.loads(written)
