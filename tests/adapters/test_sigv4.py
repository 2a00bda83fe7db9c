"""Our signatures are botocore's."""

from datetime import UTC, datetime
from functools import partial

from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.adapters.http.sigv4 import CONTENT_TYPE, RequestSigner

KEY = ReadOnlyCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", None)
TEXTS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)


def by_botocore(monkeypatch, credentials, *, host, region, target, body, now_s, content_type):
    """Sign as botocore does, at an instant."""
    instant = datetime.fromtimestamp(now_s, UTC)
    for name in ("get_current_datetime", "get_datetime"):
        if hasattr(auth, name):
            monkeypatch.setattr(auth, name, lambda *_, **__: instant.replace(tzinfo=None))
    request = AWSRequest(
        "POST",
        f"https://{host}/",
        headers={
            "Content-Type": content_type or f"{CONTENT_TYPE}1.1",
            "X-Amz-Target": target,
        },
        data=body,
    )
    auth.SigV4Auth(credentials, "kinesis", region).add_auth(request)
    return dict(request.headers)


@given(
    host=NAMES,
    region=NAMES,
    keys=st.builds(ReadOnlyCredentials, st.just("AKID"), TEXTS, st.none() | TEXTS),
    body=st.binary(),
    now_s=st.integers(1_000_000_000, 4_000_000_000),
    content_type=st.none() | st.just("application/x-amz-cbor-1.1"),
)
def test_every_request_is_signed_as_botocore_does(host, region, keys, body, now_s, content_type):
    import pytest  # noqa: PLC0415 - hypothesis wants no function-scoped fixture

    host = f"{host}.example.com"
    signer = RequestSigner(host, region=region, service="kinesis")
    target = "Kinesis_20131202.GetRecords"
    given_both = {"body": body, "now_s": now_s, "content_type": content_type}
    with pytest.MonkeyPatch.context() as patch:
        expected = by_botocore(patch, keys, host=host, region=region, target=target, **given_both)
    found = signer.headers(keys, target=target, **given_both)
    assert found["content-type"] == expected["Content-Type"]
    assert found["authorization"] == expected["Authorization"]
    assert found["x-amz-date"] == expected["X-Amz-Date"]
    assert found.get("x-amz-security-token") == expected.get("X-Amz-Security-Token")


def test_the_key_of_a_day_is_not_used_on_the_next_day_nor_for_other_credentials():
    signer = partial(RequestSigner, "kinesis.example.com", region="eu-west-1", service="kinesis")
    kept = signer()
    other = ReadOnlyCredentials("AKIDOTHER", "another", "token")
    noon = 1_700_000_000
    for credentials, now_s in [(KEY, noon), (KEY, noon + 86_400), (other, noon), (KEY, noon)]:
        arguments = {"target": "T", "body": b"{}", "now_s": now_s}
        fresh = signer().headers(credentials, **arguments)
        assert kept.headers(credentials, **arguments) == fresh
