"""
What the micro-batches of a query had.

It is kept in files: over Spark Connect a `foreachBatch` runs beside the server, and nothing but a
folder is known to it and to the test.
"""

import pickle
from pathlib import Path


class Kept:
    """
    The rows of each micro-batch, as the query's `foreachBatch` has collected them.

    Args:
        folder: of this query and those that go on from its checkpoint; made if it is not there.

    """

    def __init__(self, folder):
        self._folder = str(folder)
        Path(folder).mkdir(exist_ok=True)

    def keep(self, batch, batch_id):
        """Keep a batch; a replay has to be the same."""
        rows = batch.collect()
        file = Path(self._folder, f"{batch_id:06}")
        if file.exists():
            assert pickle.loads(file.read_bytes()) == rows, "a replay differs"  # noqa: S301 - ours
            file.with_suffix(".again").touch()
        else:
            aside = file.with_suffix(".part")
            aside.write_bytes(pickle.dumps(rows))
            aside.rename(file)

    def keep_read_twice(self, batch, batch_id):
        """Keep a batch; a second reading has to be the same, too."""
        self.keep(batch, batch_id)
        rows = pickle.loads(Path(self._folder, f"{batch_id:06}").read_bytes())  # noqa: S301 - ours
        assert batch.collect() == rows, "a second reading of the batch differs"

    def batches(self):
        """Return the rows by batch, in the order of the batches."""
        files = sorted(each for each in Path(self._folder).iterdir() if not each.suffix)
        return [pickle.loads(each.read_bytes()) for each in files]  # noqa: S301 - ours

    def repeated(self):
        """Return the numbers of the batches that came again."""
        return [int(each.stem) for each in Path(self._folder).glob("*.again")]

    def rows(self):
        return [row for rows in self.batches() for row in rows]
