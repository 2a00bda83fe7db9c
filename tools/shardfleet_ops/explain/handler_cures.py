"""
What to do about a handler's error, by its kind: most errors of user code are one of a few.

Pure. An error is told as ``Kind (file:line in function)``, of AWS's refusals with code and
operation (:mod:`shardfleet.runtime.handler_errors`); what it said is mostly not known.
"""

import re

# An error's own kind, or its code behind the kind; services spell the same refusal otherwise.
_GRANT = (
    "grant the worker's role that right on what that line names (grant_… on the fleet's worker), "
    "and deploy"
)
_RIGHTS = "(AccessDenied|Authorization|Unauthorized|NotAuthorized|Forbidden|KMS|403)"
_REFUSED = rf"^(\w+ )?{_RIGHTS}|ClientError {_RIGHTS}"
_CURES: tuple[tuple[str, str], ...] = (
    (_REFUSED, _GRANT),
    (
        (
            r"^(\w+ )?(ExpiredToken|UnrecognizedClient|InvalidClientTokenId|InvalidAccessKeyId"
            r"|InvalidSignature|SignatureDoesNotMatch|AuthFailure|.*IncompleteSignature)"
            r"|^No(Credentials|Region)|^PartialCredentials"
        ),
        "make the client without keys and regions of your own: Lambda sets them",
    ),
    (
        r"^Unknown(Service|Region)|^InvalidRegion|^(ResourceNotExists|DataNotFound)|OptInRequired",
        "name a service and a region that the deployed boto3 knows",
    ),
    (
        (
            r"ClientError (ResourceNotFound|NoSuch|NotFound|404|QueueDoesNotExist|.*NonExistent)"
            r"|^(ResourceNotFound|NoSuch|NotFound|QueueDoesNotExist)"
        ),
        "name what is there, in the worker's own region and account, or make it",
    ),
    (
        (
            r"ClientError (Throttl|ProvisionedThroughput|RequestLimit|TooManyRequests|SlowDown)"
            r"|^(Throttl|ProvisionedThroughput|TooManyRequests)"
        ),
        "raise what it may take, or lower handler_records_per_second",
    ),
    (
        r"ClientError (Validation|Invalid|Missing|Malformed)|^Param(eter)?Validation|^Validation",
        "mend the request that that line makes",
    ),
    (
        r"ClientError (ConditionalCheckFailed|.*Already|ResourceInUse)|^(Integrity|FileExists)",
        "that is a second time: let it count as done",
    ),
    (
        r"TransactionCanceled",
        "one of its parts was refused: catch it, and look at its CancellationReasons",
    ),
    (
        r"ClientError (ServiceUnavailable|Internal|5\d\d)",
        "that service failed: the batch is tried again; raise max_attempts if it takes longer",
    ),
    (
        r"^(HTTP(Status)?Error|ClientResponseError)",
        "that endpoint refuses the request: look at the status it answers with, and mend it",
    ),
    (
        r"ClientError LimitExceeded|S3Upload|^Waiter|^Pagination",
        "look at what that service answers: a limit of the account, or what is not there (yet)",
    ),
    (
        (
            r"^(EndpointConnection|ConnectTimeout|ReadTimeout|ConnectionClosed|ProxyConnection)"
            r"|^(ConnectionRefused|ConnectionReset|ConnectionAborted|Connection|BrokenPipe)Error"
            r"|^gaierror|^herror|^(Timeout|URL|SSL\w*|MaxRetry|NewConnection|Connect|Proxy)Error"
            r"|^(ClientConnect\w*|ServerDisconnected|Operational|Interface)Error"
            r"|^(RemoteDisconnected|IncompleteRead|BadStatusLine|ServerDisconnected)"
        ),
        (
            "let the function reach that endpoint (VPC, security group, name), or give the call a "
            "shorter time-out"
        ),
    ),
    (
        (
            r"^(JSONDecode|UnicodeDecode|Unpickling|BadGzipFile|Decode|Binascii|ValidationError)"
            r"|^[Ee]rror\b|^(Parse|Expat|EOF|LZMA|Zstd\w*|Schema|UnidentifiedImage)Error"
            r"|^(InvalidOperation|Arrow\w*|Avro\w*|SchemaParse\w*|Decompress\w*|InvalidT\w+)\b"
        ),
        (
            "the payload is not what that line expects: look at it (shardfleet tail), and let the "
            "code take it or leave it"
        ),
    ),
    (
        (
            r"^(Key|Index|Lookup|Attribute|Type|Value|Assertion|Overflow|ZeroDivision|Arithmetic"
            r"|FloatingPoint|Buffer|Recursion|Unicode\w*)Error|^Stop(Async)?Iteration"
        ),
        "mend that line: it does not take the record at that position (shardfleet tail shows it)",
    ),
    (
        r"^(ModuleNotFound|Import)Error",
        "add the package to the handler's requirements.txt, and deploy",
    ),
    (
        r"^OSError (ENOSPC|EDQUOT)",
        "remove from /tmp what a call leaves there, or give the worker more of it",
    ),
    (r"^OSError (EMFILE|ENFILE)", "close what that line opens: with open(...), one client for all"),
    (
        r"^OSError ENOSYS|^(BrokenProcessPool|ChildProcessError|CalledProcessError)",
        "Lambda has no shared memory for multiprocessing (use threads), and few programs to start",
    ),
    (r"^MemoryError", "raise the worker's memory_mb, or lower batch_records"),
    (
        r"^(Permission|ReadOnly|FileNotFound|IsADirectory|NotADirectory|OS)Error",
        (
            "on Lambda code lies in a folder that cannot be written: write to /tmp, and name "
            "files by Path(__file__)"
        ),
    ),
    (
        r"^InvalidReply",
        "let the handler return nothing, or what its contract says (docs/handlers.md)",
    ),
    (r"^(NameError|UnboundLocalError|SyntaxError|NotImplementedError)", "mend that line"),
    (
        r"^(RuntimeError|CancelledError|InvalidStateError)",
        (
            "look at that line: a loop inside a loop (asyncio.run in async def), or "
            "what another call has left"
        ),
    ),
    (
        r"^(SystemExit|KeyboardInterrupt)",
        "raise an error where a record cannot be handled: nothing may end the process",
    ),
    (
        r"^cancelled: |^TimeoutExpired|^Empty|^Full|^QueueFull",
        "give what it waits for a time-out of its own, or raise handler_timeout_ms",
    ),
)


# A refusal that the SDK has a class for, which is named as its code is.
_MODELLED = re.compile(r"^(?!ClientError)\w+ of [A-Z]\w+ \(")
# Any other kind, such as one of the user's own.
_PLACED = re.compile(r"^\w+( [\w.]+)?( of \w+)? \([^():]+:\d+ in ")
_LOOK = (
    "look at that line with the record at that position (shardfleet tail shows it): mend it, or "
    "catch what it raises"
)


def cure_of(error: str) -> str:
    """Return what to do about an error as it is told; empty where it names no line of code."""
    if _MODELLED.search(error):
        error = f"ClientError {error}"
    found = next((cure for kind, cure in _CURES if re.search(kind, error)), "")
    if found or not _PLACED.search(error):
        return found
    behind = (cure_of(each) for each in error.split(", from ")[1:])
    return next(filter(None, behind), "") or _LOOK


def cure_of_import(message: str) -> str:
    """Return what to do about a module that AWS refused something; empty for any other message."""
    kind = message.rpartition(" failed with ")[2]
    return _GRANT if kind != message and re.search(_REFUSED, kind) else ""
