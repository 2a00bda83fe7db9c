"""The Java KCL's own code, asked by each module of this folder in one process of its own."""

import pytest

from tests.conformance.kcl import Kcl, why_not


@pytest.fixture(scope="module")
def kcl():
    if reason := why_not():
        pytest.skip(reason)
    with Kcl() as process:
        yield process
