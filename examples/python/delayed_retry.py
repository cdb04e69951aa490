"""A retry ladder: each attempt says when the next one shall be.

The callback finds that it cannot go on and asks for another attempt after one, two and four
seconds; the fourth attempt succeeds. With RabbitMQ each rung is a queue of its own, with a
time to live and a dead-letter exchange that leads back.

LAPSE_DEMO_SPEED=20 in the environment makes every delay 20 times shorter.
"""

import os

import lapse

SPEED = float(os.environ.get("LAPSE_DEMO_SPEED", 1))
LADDER = (1, 2, 4)  # seconds before the second, third and fourth attempt

s = lapse.Scheduler(workers=0)  # no threads: run() below is the loop
started = s.now()


def tell(order: lapse.Order, event: str, note: str) -> None:
    print(f"{s.now() - started:6.2f} s  {order:<12} {event:<8} {note}", flush=True)


def notify_shop(order: lapse.Order) -> None:
    tell(order, "attempt", str(order.attempt))
    if order.attempt <= len(LADDER):
        raise lapse.Retry(LADDER[order.attempt - 1] / SPEED, "the shop does not answer")
    tell(order, "done", f"attempt {order.attempt}")
    s.stop()


s.schedule("OID00000010", 0, notify_shop)
s.run()
s.close()
