"""Fixtures: a story with invented time, and nothing that is left from one test to the next."""

import lapse
import pytest
from loops import KINDS, Loops
from support import Story


@pytest.fixture
def story():
    return Story()


@pytest.fixture(params=KINDS)
def loops(request):
    """The test runs in each kind of event loop."""
    return Loops(request.param)


@pytest.fixture(autouse=True)
def nothing_is_left():
    """The next test starts without the stories and the default scheduler of this one."""
    yield
    while Story.told:
        if s := Story.told.pop().s:
            s.close()
    if default := lapse._scheduler._default:
        default.close()
