"""A shop's WSGI application, with the process that answers in a header: HOSTS_APP names it."""

import importlib
import os

module, _, name = os.environ["HOSTS_APP"].partition(":")
shop = getattr(importlib.import_module(module), name)


def application(environ, start_response):
    def start(status, headers, *rest):
        return start_response(status, [*headers, ("X-Worker", str(os.getpid()))], *rest)

    return shop(environ, start)
