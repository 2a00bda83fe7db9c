"""A deployed worker's first batch: nothing of the SDK was loaded for it."""

import pytest

from tests.end_to_end.cloud import deployed, wait_until

pytestmark = pytest.mark.processes


def test_a_deployed_workers_first_batch_comes_without_the_sdk(tmp_path):
    file = tmp_path / "loaded"
    with deployed(
        tmp_path,
        handler="loaded",
        function="loaded:handle",
        environment={"LOADED": str(file)},
        config={"max_workers": 1},
    ) as fleet:
        fleet.client("kinesis").put_record(
            StreamName=fleet.outputs["StreamName"], PartitionKey="k", Data=b"first"
        )
        wait_until(file.exists, what="the first batch", within_s=120, fleet=fleet)
        wait_until(lambda: file.read_text()[-1:] == "\n", what="its list", within_s=10)
    loaded = file.read_text().split()
    assert "shardfleet.engine.worker.turn" in loaded
    sdk = ("boto3", "botocore", "aws_lambda_powertools")
    assert not [name for name in loaded if name.partition(".")[0] in sdk]
