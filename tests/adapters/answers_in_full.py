"""What each operation of AWS that the product calls answers in full, as botocore has read it."""

import json
from datetime import UTC, datetime

from shardfleet.adapters.dynamodb.items import item_from_fields
from shardfleet.config import FleetConfig
from shardfleet.domain.leases import changes
from tests.adapters.test_every_answer import LEASE
from tests.engine.unkind_stream import ARN

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHARD = {
    "ShardId": "shardId-000000000000",
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
    "SequenceNumberRange": {"StartingSequenceNumber": "1", "EndingSequenceNumber": "2"},
    "ParentShardId": "shardId-000000000001",
    "AdjacentParentShardId": "shardId-000000000002",
}
ITEM = item_from_fields(changes.create(LEASE).sets)
DOCUMENT = {
    "kind": {"S": "slot"},
    "id": {"S": "s"},
    "version": {"N": "1"},
    "body": {"M": {}},
}
SEAL = {"sid": {"S": "s"}, "item": {"S": "2-bb/00003"}, "body": {"B": b"x"}}
CONFIG = FleetConfig(
    fleet="f", stream_arn=ARN, lease_table="leases", state_table="state", worker_function="worker"
)
KEPT = json.dumps(
    {
        "KinesisBatchInfo": {
            "streamArn": ARN,
            "shardId": SHARD["ShardId"],
            "startSequenceNumber": "1",
            "endSequenceNumber": "1",
            "batchSize": 1,
        },
        "payload": json.dumps({"Records": [{}]}),
    }
)
UNITS = {"TableName": "t", "CapacityUnits": 0.5}
# What a service answers in full, as botocore reads it; None: it has nothing that is read.
ANSWERS = {
    "kinesis": {
        "DescribeStreamSummary": {
            "StreamDescriptionSummary": {
                "StreamName": "s",
                "StreamARN": "arn",
                "StreamStatus": "ACTIVE",
                "RetentionPeriodHours": 24,
                "StreamCreationTimestamp": NOW,
                "EnhancedMonitoring": [],
                "OpenShardCount": 1,
                "MaxRecordSizeInKiB": 1024,
                "StreamModeDetails": {"StreamMode": "PROVISIONED"},
            }
        },
        "GetRecords": {
            "Records": [
                {
                    "SequenceNumber": "1",
                    "ApproximateArrivalTimestamp": NOW,
                    "Data": b"x",
                    "PartitionKey": "k",
                    "EncryptionType": "KMS",
                }
            ],
            "NextShardIterator": "i",
            "MillisBehindLatest": 5,
            "ChildShards": [
                {
                    "ShardId": "shardId-000000000001",
                    "ParentShards": ["shardId-000000000000"],
                    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
                }
            ],
        },
        "GetShardIterator": {"ShardIterator": "i"},
        "ListShards": {"Shards": [SHARD]},
        "PutRecords": {
            "FailedRecordCount": 0,
            "Records": [
                {
                    "SequenceNumber": "1",
                    "ShardId": "shardId-000000000000",
                    "ErrorCode": "InternalFailure",
                    "ErrorMessage": "no",
                }
            ],
            "EncryptionType": "KMS",
        },
    },
    "dynamodb": {
        "GetItem": {"Item": ITEM, "ConsumedCapacity": UNITS},
        "Scan": {"Items": [ITEM], "Count": 1, "ConsumedCapacity": UNITS},
        "Query": {"Items": [ITEM], "Count": 1, "ConsumedCapacity": UNITS},
        "UpdateItem": {"Attributes": ITEM, "ConsumedCapacity": UNITS},
        "PutItem": {"Attributes": ITEM, "ConsumedCapacity": UNITS},
        "DeleteItem": {"Attributes": ITEM, "ConsumedCapacity": UNITS},
        "DescribeTable": {
            "Table": {
                "TableName": "t",
                "TableStatus": "ACTIVE",
                "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
                "BillingModeSummary": {"BillingMode": "PROVISIONED"},
                "ProvisionedThroughput": {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5},
                "GlobalSecondaryIndexes": [
                    {"IndexName": "LeaseOwnerToLeaseKeyIndex", "IndexStatus": "ACTIVE"}
                ],
            }
        },
        "BatchWriteItem": {"UnprocessedItems": {}},
        "CreateTable": {"TableDescription": {"TableName": "t", "TableStatus": "CREATING"}},
        "UpdateTable": {"TableDescription": {"TableName": "t", "TableStatus": "UPDATING"}},
        "UpdateTimeToLive": {
            "TimeToLiveSpecification": {"Enabled": True, "AttributeName": "expires"}
        },
    },
    "emr-serverless": {
        "CancelJobRun": {"applicationId": "a", "jobRunId": "r"},
        "GetApplication": {"application": {"applicationId": "a", "state": "STOPPED", "name": "n"}},
        "GetJobRun": {"jobRun": {"state": "RUNNING", "name": "n"}},
        "ListJobRuns": {
            "jobRuns": [
                {
                    "id": "r",
                    "name": "n",
                    "state": "FAILED",
                    "createdAt": NOW,
                    "updatedAt": NOW,
                    "mode": "BATCH",
                }
            ]
        },
        "StartJobRun": {"applicationId": "a", "arn": "arn", "jobRunId": "r"},
        "StopApplication": {},
    },
    "logs": {
        "FilterLogEvents": {
            "events": [{"logStreamName": "s", "timestamp": 1, "message": "{}", "ingestionTime": 1}]
        }
    },
    "sts": {
        "AssumeRole": {
            "Credentials": {
                "AccessKeyId": "key",
                "SecretAccessKey": "secret",
                "SessionToken": "token",
                "Expiration": datetime(2200, 1, 1, tzinfo=UTC),
            }
        }
    },
    "stepfunctions": {
        "DeleteStateMachine": {},
        "ListExecutions": {"executions": [{"executionArn": "arn", "name": "n"}]},
        "StopExecution": {"stopDate": NOW},
        "StartExecution": {"executionArn": "arn", "startDate": NOW},
        "DescribeExecution": {
            "executionArn": "arn",
            "stateMachineArn": "arn",
            "name": "n",
            "status": "RUNNING",
            "startDate": NOW,
            "stopDate": NOW,
        },
    },
    "s3": {
        "PutObject": {"ETag": "e"},
        "GetObject": {"Body": KEPT.encode(), "ETag": "e", "ContentLength": len(KEPT)},
        "ListObjectsV2": {"Contents": [{"Key": "k", "Size": 1}], "KeyCount": 1},
        "DeleteObject": {"DeleteMarker": True, "VersionId": "v"},
        "DeleteObjects": {
            "Deleted": [{"Key": "k"}],
            "Errors": [{"Key": "k", "Code": "InternalError", "Message": "no"}],
        },
    },
    "sqs": {
        "SendMessage": {"MessageId": "m", "MD5OfMessageBody": "d"},
        "ReceiveMessage": {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": KEPT}]},
        "ChangeMessageVisibility": {},
        "DeleteMessage": {},
    },
    "glue": {
        "GetSchemaVersion": {
            "SchemaVersionId": "x",
            "SchemaDefinition": "{}",
            "DataFormat": "AVRO",
            "Status": "AVAILABLE",
        }
    },
    "cloudformation": {
        "DescribeStackResource": {
            "StackResourceDetail": {"PhysicalResourceId": "a", "StackName": "s"}
        },
        "DescribeStacks": {"Stacks": [{"StackName": "s", "StackStatus": "DELETE_IN_PROGRESS"}]},
        "ListStackResources": {
            "StackResourceSummaries": [
                {
                    "LogicalResourceId": f"Fleet{name}",
                    "PhysicalResourceId": "manager",
                    "ResourceType": kind,
                    "ResourceStatus": "CREATE_COMPLETE",
                    "LastUpdatedTimestamp": NOW,
                }
                for name, kind in (
                    ("FirstRun0123ABCD", "Custom::ShardFleetFirstRun"),
                    ("Alarm", "AWS::CloudWatch::Alarm"),
                )
            ]
        },
    },
    "sns": {"Publish": {"MessageId": "m"}},
    "cloudwatch": {
        "PutMetricData": {},
        "DescribeAlarms": {
            "MetricAlarms": [
                {
                    "AlarmName": "lag",
                    "Metrics": [
                        {
                            "Id": "m1",
                            "MetricStat": {
                                "Metric": {"Namespace": "n", "MetricName": "lag"},
                                "Period": 60,
                                "Stat": "Maximum",
                            },
                        }
                    ],
                }
            ]
        },
    },
    "lambda": {
        "GetFunctionConfiguration": {
            "FunctionName": "manager",
            "MemorySize": 256,
            "Timeout": 75,
            "Environment": {"Variables": CONFIG.to_env()},
        },
        "Invoke": {
            "StatusCode": 200,
            "FunctionError": "Unhandled",
            "LogResult": "l",
            "Payload": b"{}",
            "ExecutedVersion": "1",
        },
    },
}
METADATA = {
    "ResponseMetadata": {
        "HTTPStatusCode": 200,
        "HTTPHeaders": {"date": "Thu, 01 Jan 2026 00:00:00 GMT"},
    }
}
