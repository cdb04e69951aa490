/* slots.c - the Python callables of a scheduler's pending orders.
 *
 * Slots live in chunks that are aligned to their size, so a slot's address leads to its
 * chunk and the chunk to its table. A chunk is in the room list while it has a free slot;
 * the last empty one is kept, others are freed. */
#include "slots.h"

#include <stdlib.h>

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

slot *slots_take(slots *t, PyObject *callback)
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
    s->callback = Py_NewRef(callback);
    t->checked = s;
    return s;
}

void slots_give(slots *t, slot *s)
{
    PyObject *callback = s->callback;
    chunk *c = chunk_of(s);
    if (t->checked == s)
        t->checked = NULL;
    if (!c->free)
        room_add(t, c);
    *s = (slot){.next = c->free};
    c->free = s;
    c->taken--;
    if (!c->taken && !t->pinned && (c->next_room || c->prev_room))
        chunk_free(t, c);
    Py_XDECREF(callback); /* last: it may run code that comes back here */
}

void slots_release(void *arg)
{
    slot *s = arg;
    slots *t = chunk_of(s)->owner;
    slot *head = atomic_load_explicit(&t->returned, memory_order_relaxed);
    do
        s->next = head;
    while (!atomic_compare_exchange_weak_explicit(&t->returned, &head, s, memory_order_release,
                                                  memory_order_relaxed));
}

void slots_drain_returned(slots *t)
{
    slot *s = atomic_exchange_explicit(&t->returned, NULL, memory_order_acquire);
    while (s) {
        slot *next = s->next; /* still taken, so its chunk stays */
        slots_give(t, s);
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
    t->checked = NULL;
    for (chunk *c = t->chunks; c; c = c->next)
        for (int i = 0; c->taken && i < CHUNK_SLOTS; i++)
            Py_CLEAR(c->slots[i].callback);
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
