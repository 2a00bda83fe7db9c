"""`shardfleet template`: a fleet as plain CloudFormation, with its archives and the next steps."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.fleet_access import JsonOption
from shardfleet_ops.cli.telling import say, tell

_README = """# {stack} as plain CloudFormation

`template.json` is the stack, `assets` has the code of its functions and layers.
Neither Python nor the CDK is needed to deploy it, only the AWS command line and a bucket in the
stack's region:

```sh
aws s3 cp assets s3://BUCKET/{stack}/ --recursive
aws cloudformation deploy --stack-name {stack} --template-file template.json \\
  --s3-bucket BUCKET --s3-prefix {stack} --capabilities CAPABILITY_IAM \\
  --parameter-overrides AssetBucket=BUCKET AssetPrefix={stack}/
```

Other code has other archive names: for new code write both anew, and deploy both again.
"""


def template(
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder that is not there.")],
    handler: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION", help="Your handler: package.module:function.")
    ] = "",
    folder: Annotated[
        Path, typer.Option(help="Where the handler's top-level module or package lies.")
    ] = Path(),
    shards: Annotated[
        int, typer.Option(help="Shards of the stream, unless it is --app's.", min=1)
    ] = 4,
    app: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Take what `cdk synth` wrote there: an assembly of one stack."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a fleet as plain CloudFormation with its assets, for a deploy without the CDK."""
    from shardfleet_local.aws.plain_template import plain_stack

    if bool(app) == bool(handler):
        raise ConfigurationError(
            "--handler MODULE:FUNCTION or --app DIR says what the template is of; one is wanted"
        )
    if out.exists():
        raise ConfigurationError(f"{out} exists; nothing was written, name another folder")
    with tempfile.TemporaryDirectory(prefix="shardfleet-") as work:
        stack = plain_stack(app or _synthesized(Path(work), handler, folder, shards))
        made = Path(work) / "out"
        stack.write(made)
        (made / "README.md").write_text(_README.format(stack=stack.name), "utf-8")
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, out)
    lines = [
        f"{out}/template.json is the stack {stack.name}; its archives are in {out}/assets.",
        f"{out}/README.md has the commands that deploy it.",
    ]
    document = {"stack": stack.name, "template": f"{out}/template.json", "assets": f"{out}/assets"}
    tell(document, lines, as_json=as_json)


def _synthesized(work: Path, handler: str, folder: Path, shards: int) -> Path:
    """Synthesize the fleet of a handler, its packages installed; needs uv and a package index."""
    from shardfleet_cdk.synthesis import synthesize

    say("synthesizing the stack, with the packages of its layers", err=True)
    context = {
        "shardfleet:stream": {"shards": shards},
        "shardfleet:handler": str(folder.resolve()),
        "shardfleet:function": handler,
    }
    written: Path = synthesize(work / "cdk.out", context=context, bundle=True)
    return written.parent
