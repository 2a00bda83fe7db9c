"""A clock that is wrong: what is refused is signed anew by the clock of who refused (I13)."""

from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from botocore.exceptions import ClientError
from botocore.session import get_session

from shardfleet.adapters.http.connections import IDLE_MS
from shardfleet.adapters.http.json_service import (
    JsonEndpoint,
    JsonService,
    Limits,
)
from shardfleet.adapters.http.json_service import (
    Service as AwsService,
)
from tests.adapters.loopback import Service, error, serving

SERVICES_S = 1_800_000_000
DYNAMODB = AwsService("dynamodb", "DynamoDB_20120810", "1.0")


class Keys:
    access_key, secret_key, token = "AKIDEXAMPLE", "secret", None

    def get_frozen_credentials(self):
        return self


def refused(code, date_s):
    stated = format_datetime(datetime.fromtimestamp(date_s, UTC), usegmt=True)
    return (*error(code, 403), ("Date", stated))


def signed_at(service):
    """Return when each request says that it was signed, epoch seconds."""
    stamps = [headers["x-amz-date"] for headers, _ in service.sent]
    return [datetime.strptime(s + "+0000", "%Y%m%dT%H%M%SZ%z").timestamp() for s in stamps]


def asked(service, *, off_s, times=2):
    """Ask by a clock that is so far off; return what the requests say."""
    client = get_session().create_client("dynamodb", region_name="us-east-1")
    with serving(service) as endpoint:
        wire = JsonService(
            JsonEndpoint(DYNAMODB, endpoint, "us-east-1", ""),
            Limits(2, 5, 5, IDLE_MS),
            credentials=Keys(),
            user_agent="test",
            client=lambda: client,
            clock_s=lambda: SERVICES_S + off_s,
        )
        for _ in range(times):
            with suppress(ClientError):
                wire.call("GetItem", b"{}")
        wire.close()
    return signed_at(service)


@pytest.mark.parametrize("off_s", [-7_200, -301, 301, 40_000])
@pytest.mark.parametrize("code", ["InvalidSignatureException", "RequestTimeTooSkewed"])
def test_a_request_is_signed_anew_by_the_clock_of_who_refused_it(code, off_s):
    service = Service(refused(code, SERVICES_S), (200, {}))
    assert asked(service, off_s=off_s) == [SERVICES_S + off_s, SERVICES_S]


@pytest.mark.parametrize(
    ("answer", "off_s"),
    [
        (refused("InvalidSignatureException", SERVICES_S), 30),  # not the clock
        (refused("AccessDeniedException", SERVICES_S), 7_200),  # not of a signature
        (refused("InvalidSignatureException", 0), 0),  # nobody's clock
        ((*error("InvalidSignatureException", 403), ("Date", "yesterday")), 7_200),
        ((*error("InvalidSignatureException", 403), ("Date", "")), 7_200),
    ],
)
def test_an_answer_that_tells_no_time_leaves_the_clock_alone(answer, off_s):
    assert asked(Service(answer, (200, {})), off_s=off_s) == 2 * [SERVICES_S + off_s]


def test_a_clock_that_was_set_right_is_gone_by_again():
    """What was learnt is wrong then, and refused; the answer's date says so."""
    wrong = refused("InvalidSignatureException", SERVICES_S + 7_200)
    service = Service(wrong, refused("InvalidSignatureException", SERVICES_S), (200, {}))
    at = asked(service, off_s=0, times=3)
    assert at == [SERVICES_S, SERVICES_S + 7_200, SERVICES_S]
