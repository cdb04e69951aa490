"""A shop in FastAPI: an order that is not paid in time is closed, in the event loop.

    cd examples/python/fastapi_shop
    uvicorn app:app

    curl -X POST localhost:8000/orders                          # place one: its id
    curl -X POST localhost:8000/orders/OID.../pay
    curl localhost:8000/orders/OID...

Payment and closing are two writers of one row. Both change it only while it is open, with
one conditional UPDATE, so exactly one of them wins.

SHOP_DB is the shop's database, SHOP_PAY_WITHIN the seconds to pay, LAPSE_URL where lapse
keeps what is pending; memory: ends with the process, and recover() makes up for that.
"""

import logging
import os
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import lapse.aio
from fastapi import FastAPI, HTTPException
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

DB = os.environ.get("SHOP_DB", "shop.db")
PAY_WITHIN = float(os.environ.get("SHOP_PAY_WITHIN", 30 * 60))

log = logging.getLogger("uvicorn.error")
timer = lapse.aio.Scheduler(os.environ.get("LAPSE_URL", "memory:"))


async def sql(text: str, *values: object) -> tuple[int, list[Any]]:
    """Run one statement on a thread: the number of rows it changed, and those it found."""

    def run() -> tuple[int, list[Any]]:
        with closing(sqlite3.connect(DB, timeout=30, isolation_level=None)) as db:
            done = db.execute(text, values)
            return done.rowcount, done.fetchall()

    return await run_in_threadpool(run)


async def change(order_id: str, status: str) -> bool:
    """The order goes from open to `status`; false when it is not open any more."""
    changed, _ = await sql(
        "UPDATE orders SET status = ? WHERE id = ? AND status = 'open'", status, order_id
    )
    return changed == 1


@timer.handler("close_unpaid")
async def close_unpaid(order: lapse.Order) -> None:
    """Its time is up. Nothing happens when it was paid, or is closed already."""
    if await change(order.id, "closed"):
        log.info("%s was not paid in time: closed", order)  # give the stock back here


async def recover() -> None:
    """Schedule the open orders of the table: those of the process before are among them."""
    _, found = await sql("SELECT id, due FROM orders WHERE status = 'open'")
    for order_id, due in found:
        with suppress(lapse.Exists):
            await timer.schedule_at(order_id, due, close_unpaid)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    await sql(
        "CREATE TABLE IF NOT EXISTS"
        " orders (id TEXT PRIMARY KEY, status TEXT NOT NULL, due REAL NOT NULL)"
    )
    async with timer:  # closes it at the end: callbacks that run may finish
        await recover()
        yield


app = FastAPI()
app.router.lifespan_context = lifespan  # FastAPI(lifespan=lifespan), from FastAPI 0.93 on


@app.post("/orders", status_code=201)
async def place() -> dict[str, str]:
    order_id = "OID" + secrets.token_hex(8)
    # First the timer, then the row: a crash between them leaves a timer without an order,
    # which does nothing, and never an order without a timer.
    await timer.schedule(order_id, PAY_WITHIN, close_unpaid)
    await sql(
        "INSERT INTO orders (id, status, due) VALUES (?, 'open', ?)",
        order_id,
        time.time() + PAY_WITHIN,
    )
    return {"id": order_id, "status": "open"}


@app.get("/orders/{order_id}")
async def show(order_id: str) -> dict[str, str]:
    _, found = await sql("SELECT status FROM orders WHERE id = ?", order_id)
    if not found:
        raise HTTPException(404)
    return {"id": order_id, "status": found[0][0]}


@app.post("/orders/{order_id}/pay")
async def pay(order_id: str) -> JSONResponse:
    paid = await change(order_id, "paid")
    if paid:
        await timer.cancel(order_id)
    return JSONResponse(await show(order_id), 200 if paid else 409)
