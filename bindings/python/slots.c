/* slots.c - the Python callables of a scheduler's pending orders.
 *
 * Slots live in chunks that are aligned to their size, so a slot's address leads to its
 * chunk and the chunk to its table. A chunk is in the room list while it has a free slot;
 * the last empty one is kept, others are freed. */
#include "slots.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 4096 };

struct chunk {
    slots *owner;
    chunk *next, *prev;           /* in `chunks` */
    chunk *next_room, *prev_room; /* in `room` */
    slot *free;
    size_t taken;
    slot slots[];
};

enum { CHUNK_SLOTS = (CHUNK_BYTES - sizeof(chunk)) / sizeof(slot) };

static chunk *chunk_of(slot *s)
{
    return (chunk *)((uintptr_t)s & ~(uintptr_t)(CHUNK_BYTES - 1));
}

static void room_add(slots *t, chunk *c)
{
    c->prev_room = NULL;
    c->next_room = t->room;
    if (t->room)
        t->room->prev_room = c;
    t->room = c;
}

static void room_remove(slots *t, chunk *c)
{
    if (c->prev_room)
        c->prev_room->next_room = c->next_room;
    else
        t->room = c->next_room;
    if (c->next_room)
        c->next_room->prev_room = c->prev_room;
}

static chunk *chunk_new(slots *t)
{
    chunk *c = aligned_alloc(CHUNK_BYTES, CHUNK_BYTES);
    if (!c) {
        PyErr_NoMemory();
        return NULL;
    }
    *c = (chunk){.owner = t, .next = t->chunks};
    for (int i = CHUNK_SLOTS - 1; i >= 0; i--) {
        c->slots[i] = (slot){.next = c->free};
        c->free = &c->slots[i];
    }
    if (t->chunks)
        t->chunks->prev = c;
    t->chunks = c;
    room_add(t, c);
    return c;
}

static void chunk_free(slots *t, chunk *c)
{
    room_remove(t, c);
    if (c->prev)
        c->prev->next = c->next;
    else
        t->chunks = c->next;
    if (c->next)
        c->next->prev = c->prev;
    free(c);
}

/* A slot with nothing in it, or NULL. */
static slot *slot_new(slots *t)
{
    chunk *c = t->room ? t->room : chunk_new(t);
    if (!c)
        return NULL;
    slot *s = c->free;
    c->free = s->next;
    c->taken++;
    if (!c->free)
        room_remove(t, c);
    s->next = NULL;
    return s;
}

/* Of a slot that nothing has any more. Returns its callable, for the caller to drop. */
static PyObject *slot_free(slots *t, slot *s)
{
    PyObject *callback = s->callback;
    chunk *c = chunk_of(s);
    slot **recent = slots_recent(t, callback);
    if (*recent == s)
        *recent = NULL;
    if (!c->free)
        room_add(t, c);
    *s = (slot){.next = c->free};
    c->free = s;
    c->taken--;
    if (!c->taken && !t->pinned && (c->next_room || c->prev_room))
        chunk_free(t, c);
    return callback;
}

slot *slots_take(slots *t, PyObject *callback)
{
    slot **recent = slots_recent(t, callback);
    slot *s = *recent;
    if (!s || s->callback != callback || s->orders == UINT32_MAX) {
        s = slot_new(t);
        if (!s)
            return NULL;
        s->callback = Py_NewRef(callback);
        *recent = s;
    }
    s->orders++;
    return s;
}

/* `count` orders fewer have it. The reference is dropped last: that may run code which
 * comes back here. */
static void give(slots *t, slot *s, uint32_t count)
{
    s->orders -= count;
    if (!s->orders)
        Py_XDECREF(slot_free(t, s));
}

void slots_give(slots *t, slot *s)
{
    give(t, s, 1);
}

/* Whether this thread holds the GIL now, as far as is known. */
static bool keeps_gil(slots *t)
{
    return atomic_load_explicit(&t->inside, memory_order_relaxed) == pthread_self();
}

/* The first of several puts it on the list; it stays there until the list is drained. The
 * last order always goes that way: no reference is dropped inside the core. */
void slots_release(void *arg)
{
    slot *s = arg;
    slots *t = chunk_of(s)->owner;
    if (keeps_gil(t) && s->orders > 1) {
        s->orders--;
        return;
    }
    if (atomic_fetch_add_explicit(&s->back, 1, memory_order_acq_rel))
        return;
    slot *head = atomic_load_explicit(&t->returned, memory_order_relaxed);
    do
        s->next = head;
    while (!atomic_compare_exchange_weak_explicit(&t->returned, &head, s, memory_order_release,
                                                  memory_order_relaxed));
}

/* A slot may be put on the next list as soon as its count is taken, and not before: `next`
 * is read first. Until then its orders are above 0, so its chunk stays. */
void slots_drain_returned(slots *t)
{
    slot *s = atomic_exchange_explicit(&t->returned, NULL, memory_order_acquire);
    while (s) {
        slot *next = s->next;
        give(t, s, atomic_exchange_explicit(&s->back, 0, memory_order_acq_rel));
        s = next;
    }
}

int slots_traverse(slots *t, visitproc visit, void *arg)
{
    for (chunk *c = t->chunks; c; c = c->next)
        for (int i = 0; c->taken && i < CHUNK_SLOTS; i++)
            Py_VISIT(c->slots[i].callback);
    return 0;
}

void slots_clear(slots *t)
{
    t->pinned++; /* what a finalizer takes or gives here leaves the chunks where they are */
    for (chunk *c = t->chunks; c; c = c->next)
        for (int i = 0; c->taken && i < CHUNK_SLOTS; i++)
            Py_CLEAR(c->slots[i].callback);
    memset(t->recent, 0, sizeof t->recent); /* a slot without a callable is not found in it */
    t->pinned--;
}

void slots_free(slots *t)
{
    atomic_store(&t->returned, NULL);
    while (t->chunks) {
        chunk *c = t->chunks;
        t->chunks = c->next;
        free(c);
    }
    *t = (slots){0};
}
