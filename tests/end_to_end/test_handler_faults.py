"""
What is wrong with a handler, deployed: cause and cure in one line of the doctor within 30 s.

Each fault is a handler of its own, which the workers have as soon as they begin anew. What each is
found as, and after how long, is a row of build/faults/result.json.
"""

import json
import os
import re
import time
from pathlib import Path

import pytest

from tests.end_to_end.cloud import LOOK_EVERY_S
from tests.end_to_end.faulty_shop import FINE, WITHIN_S, deployed_shop

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        "SHARDFLEET_TEST_FAULTS" not in os.environ, reason="takes minutes: make faults"
    ),
]
RESULT = Path(__file__).resolve().parents[2] / "build/faults/result.json"


def in_handler(*lines):
    return "def handle(batch):\n" + "".join(f"    {line}\n" for line in lines)


def awaiting(*lines):
    return f"async {in_handler(*lines)}"


def sdk(call):
    return in_handler("import boto3", f"boto3.client{call}")


SLEEPING = "has been running for"
# Class, name: the handler, the doctor's code, the cause in its line, and the cure.
FAULTS = {
    ("import", "a package that is not there"): (
        f"import no_such_package\n{FINE}",
        ("worker-import", "'no_such_package' … orders.py, line 1", "requirements.txt"),
    ),
    ("import", "a name that its module lacks"): (
        f"from json import nothing\n{FINE}",
        ("worker-import", "orders.py, line 1", "mend that line"),
    ),
    ("import", "a variable that is not set"): (
        f"import os\nPRICES = os.environ['PRICES']\n{FINE}",
        ("worker-import", "KeyError: 'PRICES' … orders.py, line 2", "mend that line"),
    ),
    ("import", "no valid Python"): (
        "x = 1\ndef prices(:\n",
        ("worker-import", "SyntaxError", "mend that line"),
    ),
    ("import", "a call of AWS without the right"): (
        f"import boto3\nboto3.client('s3').list_buckets()\n{FINE}",
        ("worker-import", "AccessDenied", "grant the worker's role"),
    ),
    ("import", "a package, within the handler"): (
        in_handler("import no_such_package"),
        ("shard-stopped", "ModuleNotFoundError (orders.py:2 in handle)", "requirements.txt"),
    ),
    ("configuration", "a signature that nobody calls"): (
        "def handle(a, b, c): pass\n",
        ("worker-signature", "it takes neither", "take one argument (batch)"),
    ),
    ("configuration", "no handler but a number"): (
        "handle = 7\n",
        ("worker-", "handle", "deploy again"),
    ),
    ("configuration", "a file that is not deployed"): (
        in_handler("open('prices.csv')"),
        ("shard-stopped", "FileNotFoundError (orders.py:2 in handle)", "Path(__file__)"),
    ),
    ("permission", "a bucket that it may not read"): (
        sdk("('s3').get_object(Bucket='prices', Key='k')"),
        ("shard-stopped", "AccessDenied of GetObject (orders.py:3 in handle)", "grant the worker"),
    ),
    ("permission", "a queue that it may not make"): (
        sdk("('sqs').create_queue(QueueName='q')"),
        ("shard-stopped", "of CreateQueue (orders.py:3 in handle)", "grant the worker's role"),
    ),
    ("permission", "a topic that it may not make"): (
        sdk("('sns').create_topic(Name='t')"),
        ("shard-stopped", "of CreateTopic (orders.py:3 in handle)", "grant the worker's role"),
    ),
    ("payload", "no JSON"): (
        in_handler("import json", "[json.loads(b'not JSON') for record in batch]"),
        ("shard-stopped", "JSONDecodeError (orders.py:3 in", "the payload is not what"),
    ),
    ("payload", "a field that is missing"): (
        in_handler("import json", "[json.loads(record.data)['page'] for record in batch]"),
        ("shard-stopped", "KeyError (orders.py:3 in", "it does not take the record"),
    ),
    ("payload", "no UTF-8"): (
        in_handler("[b'\\xff'.decode() for record in batch]"),
        ("shard-stopped", "UnicodeDecodeError (orders.py:2 in", "the payload is not what"),
    ),
    ("payload", "another type"): (
        in_handler("[None + 1 for record in batch]"),
        ("shard-stopped", "TypeError (orders.py:2 in", "it does not take the record"),
    ),
    ("payload", "an assertion"): (
        in_handler("assert not batch"),
        ("shard-stopped", "AssertionError (orders.py:2 in handle)", "it does not take the record"),
    ),
    ("time", "a call that sleeps"): (
        in_handler("import time", "time.sleep(3600)"),
        ("handler-slow", SLEEPING, "a time-out of its own"),
    ),
    ("time", "a lock that nobody opens"): (
        in_handler(
            "import threading", "lock = threading.Lock()", "lock.acquire()", "lock.acquire()"
        ),
        ("handler-slow", SLEEPING, "a time-out of its own"),
    ),
    ("time", "an endless loop"): (
        in_handler("while True: pass"),
        ("handler-slow", SLEEPING, "a time-out of its own"),
    ),
    ("time", "nobody at the other end"): (
        in_handler("import socket", "socket.create_connection(('127.0.0.1', 1))"),
        ("shard-stopped", "ConnectionRefusedError (orders.py:3 in", "let the function reach"),
    ),
    ("memory", "killed for its memory"): (
        in_handler("import os, signal", "os.kill(os.getpid(), signal.SIGKILL)"),
        ("worker-memory", "its process was killed", "raise the worker's memory_mb"),
    ),
    ("memory", "more than there is"): (
        in_handler("bytearray(10**15)"),
        ("shard-stopped", "MemoryError (orders.py:2 in handle)", "raise the worker's memory_mb"),
    ),
    ("memory", "endless recursion"): (
        in_handler("handle(batch)"),
        ("shard-stopped", "RecursionError (orders.py:2 in handle)", "mend that line"),
    ),
    ("memory", "an end of the process"): (
        in_handler("import os", "os._exit(3)"),
        ("worker-exit", "its process ended", "os._exit"),
    ),
    ("memory", "sys.exit"): (
        in_handler("import sys", "sys.exit(1)"),
        ("shard-stopped", "SystemExit (orders.py:3 in handle)", "nothing may end the process"),
    ),
    ("memory", "threads that are left behind"): (
        in_handler(
            "import threading, time",
            "for _ in range(120):",
            "    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()",
        ),
        ("handler-remark", "threads behind", "end them"),
    ),
    ("memory", "prints without an end"): (
        in_handler("for _ in range(300):", "    print('x' * 100_000)"),
        ("handler-remark", "a call printed", "print less"),
    ),
    ("SDK", "a table that is not there"): (
        sdk("('dynamodb').get_item(TableName='none', Key={'k': {'S': '1'}})"),
        ("shard-stopped", "ResourceNotFound", "name what is there"),
    ),
    ("SDK", "a parameter that is missing"): (
        sdk("('dynamodb').get_item(TableName='none')"),
        ("shard-stopped", "ParamValidationError (orders.py:3 in handle)", "mend the request"),
    ),
    ("SDK", "a service that there is not"): (
        sdk("('dynamo')"),
        ("shard-stopped", "UnknownServiceError (orders.py:3 in handle)", "name a service"),
    ),
    ("SDK", "an endpoint that does not answer"): (
        sdk("('s3', endpoint_url='http://127.0.0.1:1').list_buckets()"),
        ("shard-stopped", "EndpointConnectionError (orders.py:3 in", "let the function reach"),
    ),
    ("coroutine", "one that nobody awaits"): (
        "async def store(): pass\nasync def handle(batch): store()\n",
        ("handler-remark", "coroutine store was never awaited", "await it"),
    ),
    ("coroutine", "a loop in a loop"): (
        "import asyncio\nasync def handle(batch): asyncio.run(asyncio.sleep(0))\n",
        ("shard-stopped", "RuntimeError (orders.py:2 in handle)", "asyncio.run in async def"),
    ),
    ("coroutine", "a loop that is blocked"): (
        "import time\nasync def handle(batch): time.sleep(3600)\n",
        ("handler-slow", SLEEPING, "a time-out of its own"),
    ),
    ("import", "a library of the system that is not there"): (
        f"import ctypes\nctypes.CDLL('libprices.so')\n{FINE}",
        ("worker-import", "OSError … orders.py, line 2", "mend that line"),
    ),
    ("import", "an end of the process, by the module"): (
        f"import sys\nsys.exit(1)\n{FINE}",
        ("worker-", "SystemExit … orders.py, line 2", "mend that line"),
    ),
    ("import", "a relative import of no package"): (
        f"from . import prices\n{FINE}",
        ("worker-import", "orders.py, line 1", "mend that line"),
    ),
    ("import", "a setting that is no number"): (
        f"LIMIT = int('')\n{FINE}",
        ("worker-import", "ValueError … orders.py, line 1", "mend that line"),
    ),
    ("configuration", "a generator, whose lines nobody runs"): (
        in_handler("for record in batch:", "    yield record"),
        ("worker-signature", "it is a generator function", "take the yield out"),
    ),
    ("configuration", "a class whose objects cannot be called"): (
        "class Shop: pass\nhandle = Shop()\n",
        ("worker-", "handle", "deploy again"),
    ),
    ("payload", "no columns that csv could read"): (
        in_handler("import csv", "list(csv.reader(['\\0'], strict=True, delimiter='xx'))"),
        ("shard-stopped", "TypeError (orders.py:3 in handle)", "it does not take the record"),
    ),
    ("payload", "no compressed bytes"): (
        in_handler("import zlib", "zlib.decompress(b'plain')"),
        ("shard-stopped", "error (orders.py:3 in handle)", "the payload is not what"),
    ),
    ("payload", "no number"): (
        in_handler("from decimal import Decimal", "Decimal('x')"),
        ("shard-stopped", "InvalidOperation (orders.py:3 in handle)", "the payload is not what"),
    ),
    ("payload", "what nobody looked for"): (
        in_handler("next(iter([]))"),
        ("shard-stopped", "StopIteration (orders.py:2 in handle)", "it does not take the record"),
    ),
    ("payload", "an error of one's own"): (
        "class OrderRejected(Exception): pass\n" + in_handler("raise OrderRejected('7')"),
        ("shard-stopped", "OrderRejected (orders.py:3 in handle)", "look at that line"),
    ),
    ("permission", "a queue by its address"): (
        sdk("('sqs').send_message(QueueUrl='http://127.0.0.1/1/q', MessageBody='m')"),
        ("shard-stopped", "of SendMessage (orders.py:3 in handle)", "grant the worker's role"),
    ),
    ("time", "a program that goes on"): (
        in_handler("import subprocess", "subprocess.run(['sleep', '60'], timeout=1)"),
        ("shard-stopped", "TimeoutExpired (orders.py:3 in handle)", "a time-out of its own"),
    ),
    ("time", "a thread that is waited for"): (
        in_handler(
            "import threading, time",
            "thread = threading.Thread(target=time.sleep, args=(3600,), daemon=True)",
            "thread.start()",
            "thread.join()",
        ),
        ("handler-slow", SLEEPING, "a time-out of its own"),
    ),
    ("memory", "files that are left open"): (
        in_handler("kept = []", "while True: kept.append(open('/dev/null'))"),
        ("shard-stopped", "OSError EMFILE", "close what that line opens"),
    ),
    ("memory", "a fault of compiled code"): (
        in_handler("import ctypes", "ctypes.string_at(0)"),
        ("worker-exit", "segmentation fault", "a compiled package"),
    ),
    ("SDK", "an item that is there already"): (
        in_handler(
            "import boto3, os",
            "client = boto3.client('dynamodb')",
            "table = client.list_tables()['TableNames'][0]",
            "key = client.describe_table(TableName=table)['Table']['KeySchema'][0]",
            "client.put_item(TableName=table, Item={key['AttributeName']: {'S': 'x'}},",
            "    ConditionExpression='attribute_exists(nothing)')",
        ),
        ("shard-stopped", "ConditionalCheckFailedException of PutItem", "count as done"),
    ),
    ("coroutine", "tasks of which one fails"): (
        "import asyncio\nasync def fail(): raise KeyError('x')\n"
        + awaiting("async with asyncio.TaskGroup() as group: group.create_task(fail())"),
        ("shard-stopped", "ExceptionGroup … KeyError (orders.py:2 in fail)", "it does not take"),
    ),
    ("coroutine", "a generator that is async"): (
        "async def handle(batch):\n    yield 1\n",
        ("worker-signature", "it is a generator function", "take the yield out"),
    ),
    ("coroutine", "a time-out of one's own"): (
        "import asyncio\n" + awaiting("async with asyncio.timeout(0.1): await asyncio.sleep(60)"),
        ("shard-stopped", "TimeoutError (orders.py:3 in handle)", "shorter time-out"),
    ),
    ("coroutine", "a reply that means nothing"): (
        in_handler("return {'batchItemFailures': 5}"),
        ("shard-stopped", "InvalidReply", "what its contract says"),
    ),
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with deployed_shop(folder, handler_timeout_ms=25_000, max_turn_ms=25_000) as shop:
        allow_tables(shop.fleet)
        yield shop


@pytest.fixture(scope="module")
def table():
    """Collect a row for each fault, and write them when the last one has been tried."""
    rows = []
    yield rows
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


def allow_tables(fleet):
    """Let the worker ask DynamoDB for anything, so that what is wrong there is seen."""
    name = fleet.outputs["WorkerFunction"]
    role = fleet.client("lambda").get_function_configuration(FunctionName=name)["Role"]
    fleet.client("s3").create_bucket(Bucket="prices")
    allow = {"Effect": "Allow", "Action": "dynamodb:*", "Resource": "*"}
    fleet.client("iam").put_role_policy(
        RoleName=role.rpartition("/")[2],
        PolicyName="Tables",
        PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [allow]}),
    )


def is_in(words, text):
    return all(each in text for each in words.split(" … "))


@pytest.mark.parametrize(("kind", "name"), FAULTS)
def test_a_fault_of_a_handler_is_one_line_with_cause_and_cure(shop, table, kind, name):
    code, (wanted, cause, cure) = FAULTS[kind, name]
    # On lines of its own, so that what is found is not what the one before was found as.
    below = 10 * list(FAULTS).index((kind, name))
    cause = re.sub(
        r"(?<=orders\.py)(:|, line )(\d+)", lambda at: f"{at[1]}{below + int(at[2])}", cause
    )
    began = time.monotonic()
    row = {"kind": kind, "fault": name, "code": wanted, "found_s": None}
    table.append(row)
    shop.set("\n" * below + code)

    def line_of(found):
        for each in found:
            line = f"{each['found']}; {each['remedy']}"
            if each["code"].startswith(wanted) and is_in(cause, each["found"]) and cure in line:
                return line
        return None

    try:
        while not (line := line_of(found := shop.doctor())):
            row["said"] = found
            assert time.monotonic() - began < WITHIN_S, found
            time.sleep(LOOK_EVERY_S)
        row |= {"found_s": round(time.monotonic() - began, 1), "said": line}
    finally:
        shop.heal()
