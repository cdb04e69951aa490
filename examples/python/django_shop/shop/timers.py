"""What happens to an order when its time is up.

    cd examples/python/django_shop
    python3 manage.py migrate
    gunicorn wsgi                       # or --workers 2, --threads 8, --preload

    curl -X POST localhost:8000/orders                          # place one: its id
    curl -X POST localhost:8000/orders/OID.../pay
    curl localhost:8000/orders/OID...
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import lapse
from django.conf import settings
from django.db import close_old_connections

from .models import Order

log = logging.getLogger(__name__)


@contextmanager
def connections(order: lapse.Order) -> Iterator[None]:
    """What Django does around a request: drop connections that are broken or too old."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


# Made at import: each worker has one of its own, also with --preload, which is for memory: only.
# Nothing is scheduled at import: that runs in every management command too.
timer = lapse.Scheduler(settings.LAPSE_URL, around=connections)


@timer.handler("close_unpaid")
def close_unpaid(order: lapse.Order) -> None:
    """Nothing happens when it was paid, or is closed already."""
    if Order.change(order.id, "closed"):
        log.info("%s was not paid in time: closed", order)  # give the stock back here


@timer.handler("recover")
def recover(order: lapse.Order | None = None) -> None:
    """Schedule the open orders of the table: those of workers that are gone are among them.

    What is pending already stays as it is. Several workers may do so.
    """
    for row in Order.objects.filter(status="open"):
        with suppress(lapse.Exists):
            timer.schedule_at(row.id, row.due, close_unpaid)


def start_worker() -> None:
    """When a worker starts; and once more when the workers before it have ended, because they
    may have taken orders until then."""
    recover()
    timer.schedule(f"recover/{os.getpid()}", settings.GRACE, recover, replace=True)
