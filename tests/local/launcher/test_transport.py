"""With IAM enforced, loopback counts as TLS: a queue that takes TLS only can be written to."""

import json

import pytest

from shardfleet_local.aws.launcher import EmbeddedAws

TLS_ONLY = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Deny",
            "Principal": {"AWS": "*"},
            "Action": "sqs:*",
            "Resource": "*",
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        },
        {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*"},
    ],
}


@pytest.mark.processes
def test_a_queue_that_takes_tls_only_takes_messages():
    with EmbeddedAws(enforce_iam=True) as aws:
        iam, sqs = aws.client("iam"), aws.client("sqs")
        url = sqs.create_queue(QueueName="tls", Attributes={"Policy": json.dumps(TLS_ONLY)})
        iam.create_user(UserName="ada")
        key = iam.create_access_key(UserName="ada")["AccessKey"]
        import boto3  # noqa: PLC0415 - a client of another identity than the account's own

        ada = boto3.client(
            "sqs",
            endpoint_url=aws.endpoint_url,
            region_name=aws.region,
            aws_access_key_id=key["AccessKeyId"],
            aws_secret_access_key=key["SecretAccessKey"],
        )
        assert ada.send_message(QueueUrl=url["QueueUrl"], MessageBody="one")["MessageId"]
