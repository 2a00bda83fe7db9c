"""
Rows that Kinesis would refuse, kept as JSON lines instead of failing the batch.

One file per query, batch and partition: a repeated task writes the same file again. Binary data is
in base64; the fields are those of the row, and ``row`` and ``problem``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardfleet_spark.host.files import file_system
from shardfleet_spark.sink.row_checks import BadRow
from shardfleet_spark.sink.task_place import TaskPlace


def write_diverted(folder: str, place: TaskPlace, bad: Sequence[BadRow], *, stage: str) -> str:
    """
    Write the bad rows of one task.

    Args:
        folder: a path, or a URI of a file system that pyarrow knows, such as ``s3://bucket/bad``.
        place: the task.
        bad: its bad rows.
        stage: who looked at the rows: ``check`` (before the shuffle) or ``sink``.

    Returns:
        The file.

    Raises:
        ConfigurationError: no such file system.

    """
    system, path = file_system(folder)
    system.create_dir(path, recursive=True)
    name = re.sub(r"[^\w-]", "_", place.name)
    file = f"{path}/{stage}-{name}.jsonl"
    with system.open_output_stream(file) as output:
        output.write("".join(f"{each.as_json()}\n" for each in bad).encode())
    return file
