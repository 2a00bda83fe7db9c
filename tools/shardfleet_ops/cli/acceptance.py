"""`shardfleet acceptance`: the whole fleet in an account of yours, or on the embedded AWS."""

import contextlib
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from shardfleet_ops.cli.approval import DryRunOption, YesOption, approved, exit_code
from shardfleet_ops.cli.fleet_access import reaching_aws
from shardfleet_ops.cli.telling import plain_table, say, tell

if TYPE_CHECKING:
    from shardfleet_local.acceptance.plan import AcceptanceSize

_NAME_BYTES, _HERE = 3, "an embedded AWS on this machine"


def acceptance(
    *,
    local: Annotated[
        bool, typer.Option("--local", help="On an embedded AWS: no account, no costs.")
    ] = False,
    short: Annotated[
        bool, typer.Option("--short", help="2,000 records instead of 50,000, and short pauses.")
    ] = False,
    destroy: Annotated[
        str,
        typer.Option(metavar="NAME", help="Only destroy what an earlier run has left."),
    ] = "",
    output: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("build/acceptance"),
    account_id: Annotated[
        bool, typer.Option("--account-id", help="Name the account in the report.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Deploy a fleet, feed, disturb, rewind, drain and update it; report; destroy everything."""
    from shardfleet_local.acceptance.plan import SHORT, WHOLE

    size = SHORT if short else WHOLE
    with reaching_aws(), _interrupted_by_sigterm():
        if destroy:
            _destroy(destroy, yes=yes, dry_run=dry_run)
        else:
            _run(size, output, local=local, names=account_id, yes=yes, dry_run=dry_run)


def _run(
    size: "AcceptanceSize", output: Path, *, local: bool, names: bool, yes: bool, dry_run: bool
) -> None:
    from shardfleet_local.acceptance.deployment import AcceptanceAccount, Deployment
    from shardfleet_local.acceptance.plan import PREFIX
    from shardfleet_local.acceptance.report import AcceptanceReport, passed
    from shardfleet_local.acceptance.run import Acceptance
    from shardfleet_local.aws.launcher import EmbeddedAws
    from shardfleet_local.rig.fleet import needing_the_cdk

    if not dry_run:
        with needing_the_cdk():  # Now, and not as the failure of a step.
            import shardfleet_cdk  # noqa: F401 - it looks for Node
    account = None if local else AcceptanceAccount.of_environment()
    where = f"account {account.account_id}, region {account.region}" if account else _HERE
    tell(None, _plan(size, where), as_json=False)
    # On this machine it costs nothing: nobody is asked.
    if not approved(yes=yes or local, dry_run=dry_run, as_json=False):
        raise typer.Exit(exit_code(done=False, dry_run=dry_run))
    with contextlib.ExitStack() as stack:
        if account is None:
            aws = stack.enter_context(EmbeddedAws(enforce_iam=True))
            account = AcceptanceAccount.embedded(aws)
        name = f"{PREFIX}{token_hex(_NAME_BYTES)}"
        deployment = Deployment(account=account, name=name, embedded=local)
        if not local:
            say(f"If this is cut off: shardfleet acceptance --destroy {deployment.name} --yes")
        began = datetime.now(UTC).isoformat(timespec="seconds")
        run = Acceptance(deployment, size, say)
        try:
            run.run()
        finally:
            report = AcceptanceReport(
                name=deployment.name,
                where="the embedded AWS" if local else f"AWS, {account.region}",
                version=version("shardfleet"),
                began=began,
                size=size,
                rows=run.rows,
                hidden="" if names and not local else account.account_id,
            )
            for path in report.write(output):
                say(path)
    if not passed(run.rows):
        raise typer.Exit(1)


def _destroy(name: str, *, yes: bool, dry_run: bool) -> None:
    from shardfleet_local.acceptance.deployment import AcceptanceAccount, Deployment
    from shardfleet_local.acceptance.plan import checked_name
    from shardfleet_local.acceptance.run import destroyed

    account = AcceptanceAccount.of_environment()
    deployment = Deployment(account=account, name=checked_name(name), embedded=False)
    say(f"Destroys the stack {name} and the bucket {deployment.bucket}.")
    if not approved(yes=yes, dry_run=dry_run, as_json=False):
        raise typer.Exit(exit_code(done=False, dry_run=dry_run))
    left = destroyed(deployment, say)
    say(f"Left behind: {'; '.join(left) or 'nothing'}")
    if left:
        raise typer.Exit(1)


def _plan(size: "AcceptanceSize", where: str) -> Iterator[str | Text | Table]:
    """Yield what would be done, and for how much."""
    from shardfleet_local.acceptance.plan import MINUTES_MOST, price
    from shardfleet_local.acceptance.steps import DEPLOY, DESTROY, LEFT_BEHIND, STEPS

    yield (
        f"In {where}: a stack and a bucket of the run's own name, {size.shards} shards, "
        f"{size.records:,} records or more, {MINUTES_MOST} minutes at most."
    )
    table = plain_table("step", "what it does", "what is promised")
    for step in (DEPLOY, *STEPS, DESTROY, LEFT_BEHIND):
        table.add_row(step.name, step.does, step.promise)
    yield table
    costs = price(size)
    items = ", ".join(
        f"{name.replace('_', ' ')} ${each:.3f}" for name, each in costs.by_item.items()
    )
    yield f"On AWS it costs at most ${costs.total:.2f}: {items}."


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does: end the steps, and destroy."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
