"""A host's loop: the descriptor is readable while there is something to do, and no longer."""

import asyncio
import select

import lapse
import pytest
from support import PATIENCE


def readable(s: lapse.Scheduler, timeout: float = 0) -> bool:
    return bool(select.select([s.fileno()], [], [], timeout)[0])


def test_the_descriptor_follows_what_is_due(story):
    assert not readable(story.s)
    story.s.schedule("o", 1, story.mark)
    story.clock.advance(1)
    assert readable(story.s, PATIENCE)
    assert story.s.process() == 1
    assert not readable(story.s)


@pytest.mark.parametrize("due", [0, 1, 3], ids=lambda n: f"{n} due")
def test_a_stop_is_told_once(story, due):
    for i in range(due):
        story.s.schedule(f"o{i}", 0, story.mark)
    story.s.schedule("later", 60, story.mark)
    story.s.stop()
    assert readable(story.s, PATIENCE)
    for _ in range(2):
        with pytest.raises(lapse.Closed):
            story.s.process()
        assert not readable(story.s)
    assert story.ran == [] and story.pending == due + 1


def test_a_stop_inside_a_callback_is_told(story):
    story.s.schedule("stops", 0, lambda order: story.s.stop())
    story.s.schedule("stays", 0, story.mark)
    assert story.s.process() == 1
    assert readable(story.s, PATIENCE)
    with pytest.raises(lapse.Closed):
        story.s.process()
    assert not readable(story.s)


def test_asyncio_does_not_spin_after_a_stop():
    calls = []

    async def main():
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        s = lapse.Scheduler(workers=0)

        def process():
            calls.append(1)
            try:
                s.process()
            except lapse.Closed:
                told.set()

        loop.add_reader(s.fileno(), process)
        s.schedule("o", 0, lambda order: s.stop())
        await asyncio.wait_for(told.wait(), PATIENCE)
        before = len(calls)
        for _ in range(100):
            await asyncio.sleep(0)  # sleeps: one pass of the loop, which looks at its descriptors
        assert len(calls) == before
        loop.remove_reader(s.fileno())
        s.close()

    asyncio.run(main())
