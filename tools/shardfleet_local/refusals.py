"""
What a server of ours answers to who may not call it: in the protocol that the request came in.

An SDK reads an answer by its service's protocol, and of one that is in another says that it cannot
be parsed. A request shows which it is by its headers and, where paths name the operation, by the
service of its signature (botocore's models: protocol, protocols; AWS: Signature Version 4).
"""

import json
import re
from collections.abc import Mapping
from typing import Final
from xml.sax.saxutils import escape

REFUSED: Final = 403
_SCOPE: Final = re.compile(r"Credential=[^/]+/[^/]*/[^/]*/([a-z0-9-]+)/aws4_request")
_REST_XML: Final = frozenset({"s3", "s3-outposts", "s3express", "route53", "cloudfront"})
_QUERY: Final = "application/x-www-form-urlencoded"


def refusal_of(headers: Mapping[str, str], reason: str) -> tuple[dict[str, str], bytes]:
    """
    Return headers and body of a refusal, of status 403, for boto3 a ClientError "AccessDenied…".

    Args:
        headers: of the request, names in lower case.
        reason: one sentence for a person.

    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    code = "AccessDeniedException"
    if "cbor" in headers.get("smithy-protocol", "") or kind.startswith("application/x-amz-cbor"):
        return _cbor(headers, kind, {"__type": code, "message": reason})
    if not headers.get("x-amz-target"):
        scope = _SCOPE.search(headers.get("authorization", ""))
        service = scope[1] if scope else ""
        if kind == _QUERY or service in _REST_XML:
            return {"content-type": "text/xml"}, _xml(service, kind, reason).encode()
    told = {"content-type": kind if kind.endswith(("json-1.0", "json-1.1")) else "application/json"}
    if headers.get("x-amzn-query-mode"):  # SQS, CloudWatch: JSON with the codes of before.
        told["x-amzn-query-error"] = "AccessDenied;Sender"
    body = json.dumps({"__type": code, "message": reason})
    return {**told, "x-amzn-errortype": code}, body.encode()


def _cbor(
    headers: Mapping[str, str], kind: str, answer: Mapping[str, str]
) -> tuple[dict[str, str], bytes]:
    import cbor2  # noqa: PLC0415 - a server that is asked in CBOR has it

    told = {"content-type": kind or "application/cbor"}
    if protocol := headers.get("smithy-protocol"):
        told["smithy-protocol"] = protocol
    return told, cbor2.dumps(answer)


def _xml(service: str, kind: str, reason: str) -> str:
    error = f"<Code>AccessDenied</Code><Message>{escape(reason)}</Message>"
    if kind != _QUERY and service.startswith("s3"):
        return f"<Error>{error}</Error>"
    if service == "ec2":
        return f"<Response><Errors><Error>{error}</Error></Errors></Response>"
    return f"<ErrorResponse><Error><Type>Sender</Type>{error}</Error></ErrorResponse>"
