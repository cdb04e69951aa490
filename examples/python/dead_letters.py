"""Dead letters: what cannot be done is kept with its reason, and put back when it can.

Three refunds are due after half a second. The first is paid out; the second has no account
to go to, which no retry would change; the third meets a gateway that is down until its three
attempts, one and two seconds apart, are used up. Two dead letters are left: one is deleted,
the other is put back when the gateway is up again, and is paid out.

With RabbitMQ this takes a second exchange and queue, a header that counts deaths, and a
program that moves messages back.

LAPSE_DEMO_SPEED=20 in the environment makes every delay 20 times shorter.
"""

import os
import threading

import lapse

SPEED = float(os.environ.get("LAPSE_DEMO_SPEED", 1))
gateway_is_up, gave_up, paid_out = False, threading.Event(), threading.Event()


def tell(order_id: str, event: str, note: str = "") -> None:
    print(f"{s.now() - started:6.2f} s  {order_id:<12} {event:<8} {note}".rstrip(), flush=True)


def on_error(order: lapse.Order, error: BaseException) -> None:
    tell(order, "failed", f"attempt {order.attempt}: {error}")


def on_dead(letter: lapse.Info, reason: lapse.Reason) -> None:
    tell(letter.id, "dead", f"{reason.name.lower()}: {letter.error}")
    if reason is lapse.Reason.FAILED:
        gave_up.set()


s = lapse.Scheduler(on_error=on_error, on_dead=on_dead)
started = s.now()


@s.handler("refund", attempts=3, backoff=1 / SPEED, jitter_percent=-1)
def refund(order: lapse.Order) -> None:
    if order == "O2":
        raise lapse.Reject("no such account")
    if order == "O3" and not gateway_is_up:
        raise ConnectionError("gateway down")
    tell(order, "done", f"attempt {order.attempt}")
    if order == "O3":
        paid_out.set()


for order_id in ("O1", "O2", "O3"):
    s.schedule(order_id, 0.5 / SPEED, refund)
gave_up.wait()
for letter in sorted(s.orders(lapse.State.DEAD), key=lambda letter: letter.id):
    tell(letter.id, "letter", f"{letter.reason.name.lower()}, attempt {letter.attempt}")
s.purge("O2")
tell("O2", "purged")
gateway_is_up = True
tell("O3", "requeued")
s.requeue("O3", 0.5 / SPEED)
paid_out.wait()
s.close()
