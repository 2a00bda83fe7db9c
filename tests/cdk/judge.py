"""
Each kind of fleet before its deploy: `make judge`.

All variants are synthesized in one process (jsii starts once), without feature flags too, and for
each part of AWS. cfn-lint, which has AWS's schemas of resources, of IAM and of the states language,
and the facts that `shardfleet doctor --before` knows, look at every template.
"""

import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from shardfleet_ops.cli.templates import faults_of, read_templates

# What a variant wants all the same: its stacks, and the fact.
WANTED = {("Everything", "L07"), ("NoFlags", "L07"), ("In-", "L07")}
PROCESSES = 2


def is_wanted(stack, fault):
    """Tell whether a fault is what a variant is there for; no certain one is."""
    return not fault.certain and any(
        stack.startswith(name) and fault.fact == fact for name, fact in WANTED
    )


def judged(folder):
    """Return (stack, fault) of all templates below a folder, and how many templates there are."""
    templates = read_templates(folder)
    with ProcessPoolExecutor(PROCESSES) as pool:
        found = list(pool.map(faults_of, templates))
    pairs = [
        (template.name, fault)
        for template, faults in zip(templates, found, strict=True)
        for fault in faults
    ]
    return pairs, len(templates)


def main():
    """Synthesize, judge, tell; 1 where anything is wrong."""
    from tests.cdk import variants  # noqa: PLC0415 - it starts Node.
    from tests.cdk.conftest import HANDLER, PACKED_HANDLER  # noqa: PLC0415

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for code, source in (("handler", HANDLER), ("clicks", PACKED_HANDLER)):
            (folder / code).mkdir()
            (folder / code / f"{code}.py").write_text(source, "utf-8")
        outdir = folder / "out"
        outdir.mkdir()
        variants.synthesize_for_the_judge(
            outdir, plain=folder / "handler", packed=folder / "clicks"
        )
        pairs, count = judged(outdir)
    wrong = [(stack, fault) for stack, fault in pairs if not is_wanted(stack, fault)]
    for stack, fault in wrong:
        sys.stdout.write(f"{stack}: {fault.where}: {fault.found} ({fault.fact})\n")
    seconds = time.monotonic() - began
    sys.stdout.write(f"judged {count} templates in {seconds:.0f} s: {len(wrong)} faults\n")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
