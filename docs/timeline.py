#!/usr/bin/env python3
"""Draw what the shop demo printed: a bar for every order, from placed to paid or closed.

    build/release/examples/c/shop | docs/timeline.py > docs/timeline.svg
"""

import html
import re
import sys

LINE = re.compile(r"^ *([\d.]+) s  (\S+) +(placed|paid|closed|too late) *(.*)$")
COLOURS = {"paid": "#2e9e6b", "closed": "#d9534f"}
LEFT, TOP, ROW, SECOND = 130, 44, 30, 96


def read(lines):
    """Orders in the order of placing: id -> [placed, ended, fate, note, late payment]."""
    orders = {}
    for line in lines:
        found = LINE.match(line)
        if not found:
            continue
        at, order, event, note = float(found[1]), found[2], found[3], found[4]
        if event == "placed":
            orders[order] = [at, None, None, "", None]
        elif event == "too late":
            orders[order][4] = at
        else:
            orders[order][1:4] = [at, event, note]
    return orders


def text(x, y, words, colour="#333", anchor="start", weight="normal"):
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{html.escape(words)}</text>'
    )


def draw(orders):
    end = max(ended or placed for placed, ended, *_ in orders.values()) + 0.6
    width, height = LEFT + end * SECOND + 330, TOP + ROW * len(orders) + 42
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
        text(12, 24, "Eight orders, three seconds to pay", "#111", weight="bold"),
    ]
    bottom = TOP + ROW * len(orders)
    for second in range(int(end) + 1):
        x = LEFT + second * SECOND
        out.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}" stroke="#ddd"/>')
        out.append(text(x, bottom + 18, f"{second} s", "#888", "middle"))
    for row, (order, (placed, ended, fate, note, late)) in enumerate(orders.items()):
        y = TOP + row * ROW
        x = LEFT + placed * SECOND
        length = ((ended or placed) - placed) * SECOND
        colour = COLOURS.get(fate, "#999")
        out.append(text(12, y + 20, order))
        out.append(
            f'<rect x="{x:.1f}" y="{y + 6}" width="{length:.1f}" height="18" rx="3" '
            f'fill="{colour}"/>'
        )
        label = f"{fate}, {note}" if note else str(fate)
        if late is not None:
            label += f"; the payment at {late:.1f} s is too late"
        out.append(text(x + length + 8, y + 20, label, colour))
    out.append(text(LEFT, bottom + 36, "green: paid in time; red: lapsed and closed", "#888"))
    out.append("</svg>")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    sys.stdout.write(draw(read(sys.stdin)))
