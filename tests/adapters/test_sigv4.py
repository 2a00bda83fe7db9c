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
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)


def by_botocore(monkeypatch, credentials, *, host, region, target, body, now_s):
    """Sign as botocore does, at an instant."""
    instant = datetime.fromtimestamp(now_s, UTC)
    for name in ("get_current_datetime", "get_datetime"):
        if hasattr(auth, name):
            monkeypatch.setattr(auth, name, lambda *_, **__: instant.replace(tzinfo=None))
    request = AWSRequest(
        "POST",
        f"https://{host}/",
        headers={"Content-Type": f"{CONTENT_TYPE}1.1", "X-Amz-Target": target},
        data=body,
    )
    auth.SigV4Auth(credentials, "kinesis", region).add_auth(request)
    return dict(request.headers)


@given(
    host=NAMES,
    region=NAMES,
    secret=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1),
    token=st.none() | st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1),
    body=st.binary(),
    now_s=st.integers(1_000_000_000, 4_000_000_000),
)
def test_every_request_is_signed_as_botocore_does(host, region, secret, token, body, now_s):
    import pytest  # noqa: PLC0415 - hypothesis wants no function-scoped fixture

    host = f"{host}.example.com"
    signer = RequestSigner(host, region=region, service="kinesis")
    credentials = ReadOnlyCredentials("AKID", secret, token)
    target = "Kinesis_20131202.GetRecords"
    with pytest.MonkeyPatch.context() as patch:
        expected = by_botocore(
            patch, credentials, host=host, region=region, target=target, body=body, now_s=now_s
        )
    found = signer.headers(credentials, target=target, body=body, now_s=now_s)
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
