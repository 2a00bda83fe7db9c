"""
Who may do what: every role of the fleet and every right it has, written out (hazard H19).

No `grant_*` of the CDK is used here: those give more than is called (for a stream also
SubscribeToShard and ListStreams, for a table wildcards on its indexes). One function per role
returns the role's inline policies by name. Where AWS allows no narrower resource, the reason
stands beside the wildcard.

The user's handler runs in the worker's process and has the worker's rights, plus what the user
grants to the construct; one that is a function of its own has its own role, and none of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aws_cdk import Aws, Stack
from aws_cdk import aws_dynamodb as ddb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kinesis as kinesis
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from shardfleet.engine.state.kinds import WORKER_KINDS
from shardfleet_cdk.failed_records import KEY_PREFIX, STATES_PREFIX
from shardfleet_cdk.lease_table import OWNER_INDEX
from shardfleet_cdk.references import is_alias

Policies = dict[str, iam.PolicyDocument]
Rights = dict[str, list[iam.PolicyStatement]]

STREAM_ACTIONS = ("DescribeStreamSummary", "GetRecords", "GetShardIterator", "ListShards")
# What a caller needs of the key behind a table, queue or bucket; the service uses it on the
# caller's behalf, hence the condition on the service.
DATA_KEY_ACTIONS = (
    "Decrypt",
    "DescribeKey",
    "Encrypt",
    "GenerateDataKey",
    "GenerateDataKeyWithoutPlaintext",
    "ReEncryptFrom",
    "ReEncryptTo",
)
NETWORK_ACTIONS = (
    "AssignPrivateIpAddresses",
    "CreateNetworkInterface",
    "DeleteNetworkInterface",
    "DescribeNetworkInterfaces",
    "DescribeSubnets",
    "UnassignPrivateIpAddresses",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """
    What the roles' rights are about.

    Attributes:
        fleet: the fleet's name.
        stream: the stream, perhaps of another account.
        consumer_arn: of the consumer by which records are pushed; empty: they are polled.
        lease_table: KCL's table.
        kcl_tables: names of a KCL 3's tables for its workers' metrics and its coordinator's state.
        state_table: the fleet's own.
        failed_queue: for given-up records, if the fleet has one.
        failed_bucket: likewise.
        failed_topic: what is told of them, if there is one.
        has_windows: the handler has tumbling windows, whose large states are in the bucket.
        handler_function: the user's, if the handler is a function of its own.
        encryption_key: the customer key of the functions' environment and of the state machine;
            the others know their own.

    """

    fleet: str
    stream: kinesis.IStream
    consumer_arn: str
    lease_table: ddb.ITable
    kcl_tables: tuple[str, str]
    state_table: ddb.ITable
    failed_queue: sqs.IQueue | None
    failed_bucket: s3.IBucket | None
    failed_topic: sns.ITopic | None
    has_windows: bool
    handler_function: lambda_.IFunction | None
    encryption_key: kms.IKey | None


def executions_arn(state_machine_name: str) -> str:
    """Name all executions of a machine: an execution's own name is known when it is started."""
    states = f"arn:{Aws.PARTITION}:states:{Aws.REGION}:{Aws.ACCOUNT_ID}"
    return f"{states}:execution:{state_machine_name}:*"


def failed_objects_arn(bucket: s3.IBucket, fleet: str) -> str:
    """Name the objects in which a fleet's given-up records are kept, and no other fleet's."""
    return bucket.arn_for_objects(f"{KEY_PREFIX}{Aws.ACCOUNT_ID}/{Aws.REGION}/{fleet}/*")


def states_arn(bucket: s3.IBucket, fleet: str) -> str:
    """Name the objects in which a fleet's large states of windows are kept."""
    return bucket.arn_for_objects(f"{STATES_PREFIX}{Aws.ACCOUNT_ID}/{Aws.REGION}/{fleet}/*")


def worker_rights(resources: Resources, *, log_group_arn: str, in_vpc: bool) -> Policies:
    """Worker: no Scan; in the fleet-state table single documents only, none to be deleted."""
    return _documents(_of_worker(resources, log_group_arn=log_group_arn, in_vpc=in_vpc))


def _of_worker(resources: Resources, *, log_group_arn: str = "", in_vpc: bool = False) -> Rights:
    lease_table = resources.lease_table.table_arn
    rights = {
        "Stream": [_allow("kinesis", STREAM_ACTIONS, [resources.stream.stream_arn])],
        "Leases": [
            _allow("dynamodb", ["Query"], [f"{lease_table}/index/{OWNER_INDEX}"]),
            _allow("dynamodb", ["GetItem", "PutItem", "UpdateItem"], [lease_table]),
        ],
        "State": _state_of_worker(resources.state_table.table_arn),
        "Logs": [_logs(log_group_arn)] if log_group_arn else [],
    }
    if resources.consumer_arn:
        rights["Stream"].append(_allow("kinesis", ["SubscribeToShard"], [resources.consumer_arn]))
    if resources.failed_queue:
        rights["FailedRecords"] = [
            _allow("sqs", ["SendMessage"], [resources.failed_queue.queue_arn])
        ]
    if resources.failed_bucket:
        objects = [failed_objects_arn(resources.failed_bucket, resources.fleet)]
        rights.setdefault("FailedRecords", []).append(_allow("s3", ["PutObject"], objects))
        if resources.has_windows:
            states = [states_arn(resources.failed_bucket, resources.fleet)]
            actions = ["DeleteObject", "GetObject", "PutObject"]
            rights["WindowStates"] = [_allow("s3", actions, states)]
    if resources.failed_topic:
        topic = resources.failed_topic.topic_arn
        rights["FailedRecords"].append(_allow("sns", ["Publish"], [topic]))
    if resources.handler_function:
        arn = resources.handler_function.function_arn
        rights["Handler"] = [_allow("lambda", ["InvokeFunction"], [arn])]
    if in_vpc:
        rights["Network"] = _network()
    stores = (
        resources.encryption_key,
        resources.lease_table.encryption_key,
        resources.state_table.encryption_key,
        resources.failed_queue.encryption_master_key if resources.failed_queue else None,
        resources.failed_bucket.encryption_key if resources.failed_bucket else None,
        resources.failed_topic.master_key if resources.failed_topic else None,
    )
    told = ("sns",) if resources.failed_topic else ()
    services = ("dynamodb", "sqs", "s3", *told, "lambda")
    return {**rights, "Keys": _keys(resources.stream, stores, services)}


def _network() -> list[iam.PolicyStatement]:
    """Worker in a VPC: Lambda may make its interfaces; code that runs in a function may not."""
    # Network interfaces have no ARN before they exist; Lambda asks for this.
    allowed = _allow("ec2", NETWORK_ACTIONS, ["*"])
    # Fact I14. AWS's page names the function, which the role cannot: the function names the role.
    denied = iam.PolicyStatement(
        effect=iam.Effect.DENY,
        actions=allowed.actions,
        resources=["*"],
        conditions={"Null": {"lambda:SourceFunctionArn": "false"}},
    )
    return [allowed, denied]


def _state_of_worker(state_table: str) -> list[iam.PolicyStatement]:
    """
    Worker: may read any one document, and write those of its own kinds.

    So a handler, which has the worker's rights, can change none of the manager's.
    """
    writes = _allow("dynamodb", ["UpdateItem"], [state_table])
    # Without the second one a request that names no key would pass.
    writes.add_condition("ForAllValues:StringLike", {"dynamodb:LeadingKeys": WORKER_KINDS})
    writes.add_condition("Null", {"dynamodb:LeadingKeys": "false"})
    return [_allow("dynamodb", ["GetItem"], [state_table]), writes]


def manager_rights(
    resources: Resources, *, log_group_arn: str, state_machine_arn: str, state_machine_name: str
) -> Policies:
    """Manager: the lease table whole; starts and describes executions of its own machine."""
    return _documents(
        _of_manager(
            resources,
            log_group_arn=log_group_arn,
            state_machine_arn=state_machine_arn,
            state_machine_name=state_machine_name,
        )
    )


def _of_manager(
    resources: Resources,
    *,
    state_machine_arn: str,
    state_machine_name: str,
    log_group_arn: str = "",
) -> Rights:
    stores = (
        resources.encryption_key,
        resources.lease_table.encryption_key,
        resources.state_table.encryption_key,
    )
    metrics, coordinator = resources.kcl_tables
    return {
        "Stream": [_allow("kinesis", STREAM_ACTIONS, [resources.stream.stream_arn])],
        "Leases": [
            _allow(
                "dynamodb",
                ["DeleteItem", "GetItem", "PutItem", "Scan", "UpdateItem"],
                [resources.lease_table.table_arn],
            ),
            # Where a KCL 3 keeps its workers' rows, and how far it has migrated, until 3.4.
            _allow(
                "dynamodb",
                ["DeleteItem", "Scan", "UpdateItem"],
                [_table_arn(metrics)],
            ),
            _allow(
                "dynamodb",
                ["GetItem"],
                [_table_arn(coordinator)],
            ),
        ],
        "State": [
            _allow(
                "dynamodb",
                ["DeleteItem", "GetItem", "Query", "Scan", "UpdateItem"],
                [resources.state_table.table_arn],
            )
        ],
        "Slots": [
            _allow("states", ["StartExecution"], [state_machine_arn]),
            _allow("states", ["DescribeExecution"], [executions_arn(state_machine_name)]),
        ],
        "Logs": [_logs(log_group_arn)] if log_group_arn else [],
        "Keys": _keys(resources.stream, stores, ("dynamodb", "states", "lambda")),
    }


def process_rights(
    resources: Resources, *, state_machine: sfn.StateMachine, manager_arn: str
) -> list[iam.PolicyStatement]:
    """Process: what worker and manager may, but for their logs; and it finds its fleet."""
    machine_arn, name = state_machine.state_machine_arn, state_machine.state_machine_name
    of_manager = _of_manager(resources, state_machine_arn=machine_arn, state_machine_name=name)
    # A worker's documents are among those that a manager may write.
    of_worker = {what: it for what, it in _of_worker(resources).items() if what != "State"}
    return [
        *(
            right
            for rights in (of_worker, of_manager)
            for each in rights.values()
            for right in each
        ),
        _allow("cloudformation", ["ListStackResources"], [Aws.STACK_ID]),
        _allow("lambda", ["GetFunctionConfiguration"], [manager_arn]),
    ]


def let_call(manager: Construct, worker_role: iam.Role, manager_arn: str) -> None:
    """Worker: calls the manager, which needs the worker; so apart from the role."""
    rights = [_allow("lambda", ["InvokeFunction"], [manager_arn])]
    iam.Policy(manager, "Callers", statements=rights, roles=[worker_role])


def first_run_rights(
    *,
    log_group_arn: str,
    manager_arn: str,
    machine: sfn.StateMachine,
    encryption_key: kms.IKey | None,
) -> Policies:
    """First run at deploy time: invokes the manager; at the end: deletes the state machine."""
    arn = machine.state_machine_arn
    executions = executions_arn(machine.state_machine_name)
    return _documents(
        {
            "Manager": [_allow("lambda", ["InvokeFunction"], [manager_arn])],
            "Stack": [_allow("cloudformation", ["DescribeStacks"], [Aws.STACK_ID])],
            "Workers": [
                _allow("states", ["DeleteStateMachine", "ListExecutions"], [arn]),
                _allow("states", ["StopExecution"], [executions]),
            ],
            "Keys": [_history_key(arn, encryption_key)] if encryption_key else [],
            "Logs": [_logs(log_group_arn)],
        }
    )


def schedule_rights(
    *, manager_arn: str, dead_letters: sqs.IQueue, encryption_key: kms.IKey | None
) -> Policies:
    """Schedule: invokes the manager, and reports the invocations that could not be made."""
    keys = [_use_key(encryption_key, ("sqs",))] if encryption_key else []
    return _documents(
        {
            "Manager": [_allow("lambda", ["InvokeFunction"], [manager_arn])],
            "DeadLetters": [_allow("sqs", ["SendMessage"], [dead_letters.queue_arn])],
            "Keys": keys,
        }
    )


def machine_rights(*, worker_alias_arn: str) -> Policies:
    """State machine: invokes the worker's alias (log delivery and tracing are the CDK's part)."""
    return _documents({"Worker": [_allow("lambda", ["InvokeFunction"], [worker_alias_arn])]})


def successor_rights(
    state_machine_arn: str, *, encryption_key: kms.IKey | None
) -> list[iam.PolicyStatement]:
    """
    State machine: starts itself (continue as new), and reads and writes its own encrypted history.

    Apart from the role, because both name the machine, which needs the role. The CDK's own right
    to the key is of no use to a machine without a fixed name: it names a machine called "".
    """
    rights = [_allow("states", ["StartExecution"], [state_machine_arn])]
    if encryption_key:
        rights.append(_history_key(state_machine_arn, encryption_key))
    return rights


def _history_key(state_machine_arn: str, key: kms.IKey) -> iam.PolicyStatement:
    history = _allow("kms", ["Decrypt", "GenerateDataKey"], [key.key_arn])
    history.add_condition(
        "StringEquals",
        {"kms:EncryptionContext:aws:states:stateMachineArn": state_machine_arn},
    )
    return history


def of_this_account(service: str) -> iam.ServicePrincipal:
    """Return a service that acts for this account: no other's resource may use the role."""
    return iam.ServicePrincipal(
        f"{service}.amazonaws.com",
        conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
    )


def lambda_role(scope: Construct, construct_id: str, policies: Policies) -> iam.Role:
    """Make a role for a function; only functions of this account may assume it."""
    return iam.Role(
        scope,
        construct_id,
        assumed_by=of_this_account("lambda"),
        inline_policies=policies,
    )


def schedule_role(scope: Construct, construct_id: str, policies: Policies) -> iam.Role:
    """Make the schedule's role; only schedules of this account's default group may assume it."""
    group = Stack.of(scope).format_arn(
        service="scheduler", resource="schedule-group", resource_name="default"
    )
    conditions = {
        "StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID, "aws:SourceArn": group},
    }
    return iam.Role(
        scope,
        construct_id,
        assumed_by=iam.ServicePrincipal("scheduler.amazonaws.com", conditions=conditions),
        inline_policies=policies,
    )


def let_logs_use(key: kms.IKey) -> None:
    """Let CloudWatch Logs encrypt this account's log groups with the key (a no-op if imported)."""
    group = f"arn:{Aws.PARTITION}:logs:{Aws.REGION}:{Aws.ACCOUNT_ID}:log-group:*"
    key.add_to_resource_policy(
        iam.PolicyStatement(
            principals=[iam.ServicePrincipal(f"logs.{Aws.REGION}.{Aws.URL_SUFFIX}")],
            actions=[f"kms:{action}" for action in DATA_KEY_ACTIONS],
            resources=["*"],  # In a key policy, * is the key itself.
            conditions={"ArnLike": {"kms:EncryptionContext:aws:logs:arn": group}},
        )
    )


def _allow(service: str, actions: Iterable[str], resources: Iterable[str]) -> iam.PolicyStatement:
    return iam.PolicyStatement(
        actions=[f"{service}:{action}" for action in actions], resources=list(resources)
    )


def _table_arn(name: str) -> str:
    return f"arn:{Aws.PARTITION}:dynamodb:{Aws.REGION}:{Aws.ACCOUNT_ID}:table/{name}"


def _logs(log_group_arn: str) -> iam.PolicyStatement:
    return _allow("logs", ["CreateLogStream", "PutLogEvents"], [log_group_arn])


def _keys(
    stream: kinesis.IStream, stores: Iterable[kms.IKey | None], services: tuple[str, ...]
) -> list[iam.PolicyStatement]:
    # An alias here is AWS's own key, which needs no right.
    keys = {key.node.path: key for key in stores if key and not is_alias(key)}
    statements = [_use_key(key, services) for key in keys.values()]
    if stream.encryption_key and not is_alias(stream.encryption_key):
        statements.append(_allow("kms", ["Decrypt"], [stream.encryption_key.key_arn]))
    return statements


def _use_key(key: kms.IKey, services: tuple[str, ...]) -> iam.PolicyStatement:
    statement = _allow("kms", DATA_KEY_ACTIONS, [key.key_arn])
    through = [f"{service}.{Aws.REGION}.{Aws.URL_SUFFIX}" for service in services]
    statement.add_condition("StringEquals", {"kms:ViaService": through})
    return statement


def _documents(rights: Rights) -> Policies:
    return {
        name: iam.PolicyDocument(statements=statements)
        for name, statements in rights.items()
        if statements
    }
