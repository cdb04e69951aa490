"""A delay queue: take orders as their time comes, one after the other.

Five orders of three seconds each; each one is scheduled when the one before it was taken,
so they come after about 3.00, 6.00, 9.00, 12.00 and 15.00 seconds. An order without a
callback waits for whoever takes it, as in a DelayQueue.

LAPSE_DEMO_SPEED=20 in the environment makes every delay 20 times shorter.
"""

import os

import lapse

SPEED = float(os.environ.get("LAPSE_DEMO_SPEED", 1))


def main() -> None:
    with lapse.Scheduler("memory:?engine=heap", workers=0) as s:
        started = s.now()
        for number in range(1, 6):
            s.schedule(f"OID{number:08}", 3 / SPEED)
            with s.take() as order:  # leaving the block settles it as done
                seconds, note = s.now() - started, f"late {order.late * 1000:.1f} ms"
                print(f"{seconds:6.2f} s  {order:<12} {'taken':<8} {note}", flush=True)


if __name__ == "__main__":
    main()
