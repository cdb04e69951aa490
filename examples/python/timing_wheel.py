"""One order of five seconds beside a ticking clock.

The program has a loop of its own: it waits until the next tick of its clock or until the
order is due, whichever comes first, and lets lapse run what is due. No thread is started,
and nothing wakes up in between.

LAPSE_DEMO_SPEED=20 in the environment makes every delay 20 times shorter.
"""

import os
import select

import lapse

SECOND = 1 / float(os.environ.get("LAPSE_DEMO_SPEED", 1))

s = lapse.Scheduler("memory:?engine=wheel&tick=1ms", workers=0)
started = s.now()
is_open = True


def tell(order_id: str, event: str, note: object) -> None:
    print(f"{s.now() - started:6.2f} s  {order_id:<12} {event:<8} {note}", flush=True)


def close_unpaid(order: lapse.Order) -> None:
    global is_open
    tell(order, "closed", f"late {order.late * 1000:.1f} ms")
    is_open = False


def run_until(instant: float) -> None:
    """Wait for the next tick of the clock and run what falls due before it."""
    while is_open and (left := instant - s.now()) > 0:
        if select.select([s], [], [], left)[0]:  # a scheduler has a fileno()
            s.process()


s.schedule("OID00000010", 5 * SECOND, close_unpaid)
tick = 0
while is_open:
    tick += 1
    run_until(started + tick * SECOND)
    if is_open:
        tell("clock", "tick", tick)
s.close()
