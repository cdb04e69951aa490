"""A shop in Flask: an order that is not paid in time is closed.

    cd examples/python/flask_shop
    gunicorn app:app                    # or --workers 2, --threads 8, --preload

    curl -X POST localhost:8000/orders                          # place one: its id
    curl -X POST localhost:8000/orders/OID.../pay
    curl localhost:8000/orders/OID...

Payment and closing are two writers of one row. Both change it only while it is open, with
one conditional UPDATE, so exactly one of them wins, in whatever worker they run.

SHOP_DB is the shop's database, SHOP_PAY_WITHIN the seconds to pay, LAPSE_URL where lapse
keeps what is pending; memory: ends with its worker, and recover() makes up for that.
"""

import os
import secrets
import sqlite3
import time
from contextlib import suppress

import lapse
from flask import Flask, abort, g

DB = os.environ.get("SHOP_DB", "shop.db")
PAY_WITHIN = float(os.environ.get("SHOP_PAY_WITHIN", 30 * 60))
GRACE = float(os.environ.get("SHOP_GRACE", 40))  # gunicorn's graceful_timeout, and some

app = Flask(__name__)
app.logger.setLevel("INFO")

# Made at import: each worker has one of its own, also with --preload, which is for memory: only.
timer = lapse.Scheduler(
    os.environ.get("LAPSE_URL", "memory:"), around=lambda order: app.app_context()
)


def db() -> sqlite3.Connection:
    """The connection of this request, or of this callback: `around` gives it a context."""
    if "db" not in g:
        g.db = sqlite3.connect(DB, timeout=30, isolation_level=None)
    return g.db


@app.teardown_appcontext
def close_db(error: BaseException | None) -> None:
    if "db" in g:
        g.pop("db").close()


with app.app_context():
    db().execute(
        "CREATE TABLE IF NOT EXISTS"
        " orders (id TEXT PRIMARY KEY, status TEXT NOT NULL, due REAL NOT NULL)"
    )


def change(order_id: str, status: str) -> bool:
    """The order goes from open to `status`; false when it is not open any more."""
    done = db().execute(
        "UPDATE orders SET status = ? WHERE id = ? AND status = 'open'", (status, order_id)
    )
    return done.rowcount == 1


@timer.handler("close_unpaid")
def close_unpaid(order: lapse.Order) -> None:
    """Its time is up. Nothing happens when it was paid, or is closed already."""
    if change(order.id, "closed"):
        app.logger.info("%s was not paid in time: closed", order)  # give the stock back here


@app.post("/orders")
def place() -> tuple[dict[str, str], int]:
    order_id = "OID" + secrets.token_hex(8)
    # First the timer, then the row: a crash between them leaves a timer without an order,
    # which does nothing, and never an order without a timer.
    timer.schedule(order_id, PAY_WITHIN, close_unpaid)
    db().execute(
        "INSERT INTO orders (id, status, due) VALUES (?, 'open', ?)",
        (order_id, time.time() + PAY_WITHIN),
    )
    return {"id": order_id, "status": "open"}, 201


@app.get("/orders/<order_id>")
def show(order_id: str) -> dict[str, str]:
    row = db().execute("SELECT status FROM orders WHERE id = ?", (order_id,)).fetchone()
    if row is None:
        abort(404)
    return {"id": order_id, "status": row[0]}


@app.post("/orders/<order_id>/pay")
def pay(order_id: str) -> tuple[dict[str, str], int]:
    paid = change(order_id, "paid")
    if paid:
        timer.cancel(order_id)  # UNKNOWN when another worker has it: that one finds it paid
    return show(order_id), 200 if paid else 409


@timer.handler("recover")
def recover(order: lapse.Order | None = None) -> None:
    """Schedule the open orders of the table: those of workers that are gone are among them.

    What is pending already stays as it is. Several workers may do so.
    """
    for order_id, due in db().execute("SELECT id, due FROM orders WHERE status = 'open'"):
        with suppress(lapse.Exists):
            timer.schedule_at(order_id, due, close_unpaid)


def start_worker() -> None:
    """When a worker starts; and once more when the workers before it have ended, because they
    may have taken orders until then."""
    with app.app_context():
        recover()
    timer.schedule(f"recover/{os.getpid()}", GRACE, recover, replace=True)
