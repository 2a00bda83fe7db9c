"""What `put`, `local run` and `demo` ask about a user's records: they share one reader."""

from typing import Annotated

import typer

InputOption = Annotated[
    str,
    typer.Option(
        "--input",
        metavar="FILE",
        help="JSON lines, a JSON array or CSV, packed or not; - for standard input.",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD", help="The partition key. Default: every line is a key of its own."
    ),
]
DelimiterOption = Annotated[
    str | None,
    typer.Option(
        metavar="CHARACTER",
        help="What divides the columns of CSV, or the word tab. Default: it is found.",
    ),
]
RejectsOption = Annotated[
    bool, typer.Option("--rejects", help="Leave bad lines out, and name them.")
]
