"""One furnished folder and one warm server for all tests of faults."""

import pytest

from tests.faults.commands import Server
from tests.faults.workplace import Workplace, furnish


@pytest.fixture(scope="session")
def workplace(tmp_path_factory):
    """A folder with a tiny model, tasks and recipes, and the server that runs commands in it."""
    server = Server(tmp_path_factory.mktemp("output"))
    yield Workplace(folder=furnish(tmp_path_factory.mktemp("workplace")), server=server)
    server.close()
