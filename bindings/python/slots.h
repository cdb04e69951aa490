/* slots.h - the Python callables of a scheduler's pending orders.
 *
 * The core knows an order's callable only as the address of its slot. Orders that are given
 * the same callable one after another share a slot, and a slot holds one reference: a
 * million orders with one function cost no more than one, and paying an order touches no
 * memory here that is not in the cache. A slot is taken before the order is scheduled. When
 * the core releases it, on whatever thread and with or without the GIL, it is only counted
 * and put on a list; the next call of the binding that holds the GIL drops the reference
 * after the last. In a call that keeps the GIL (slots_enter) one of several is just taken off
 * the count. No Python object exists per order, and the collector sees one owner: the
 * Scheduler. */
#ifndef LAPSE_PYTHON_SLOTS_H
#define LAPSE_PYTHON_SLOTS_H

#include "binding.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct slot {
    PyObject *callback;     /* owned; NULL when free or cleared */
    struct slot *next;      /* on a chunk's free list, or on the returned list */
    uint32_t orders;        /* that have it; under the GIL */
    _Atomic(uint32_t) back; /* of these, released by the core and not drained yet */
} slot;

enum { SLOTS_RECENT = 16 };

typedef struct chunk chunk;

typedef struct slots {
    chunk *chunks;              /* all; under the GIL, as all but `returned` */
    chunk *room;                /* those with a free slot */
    unsigned pinned;            /* while above 0 no chunk is freed */
    slot *recent[SLOTS_RECENT]; /* the last one taken, by its callable's address */
    _Atomic(slot *) returned;   /* released by the core, from any thread */
    _Atomic(pthread_t) inside;  /* the thread that calls the core with the GIL, or 0 */
} slots;

/* A slot that holds `callback` for one order more, or NULL with MemoryError. */
slot *slots_take(slots *t, PyObject *callback);

/* Undo slots_take for an order that was not accepted. Runs finalizers. */
void slots_give(slots *t, slot *s);

/* Drop what the core has released since the last call. Runs finalizers. */
static inline void slots_drain(slots *t);

/* Around a call into the core that keeps the GIL and calls no Python code. */
static inline void slots_enter(slots *t)
{
    atomic_store_explicit(&t->inside, pthread_self(), memory_order_relaxed);
}

static inline void slots_leave(slots *t)
{
    atomic_store_explicit(&t->inside, 0, memory_order_relaxed);
}

/* A lapse_release: may be called on any thread, with the GIL or without. */
void slots_release(void *arg);

/* Where a slot with this callable is if it was taken lately. */
static inline slot **slots_recent(slots *t, const PyObject *callback)
{
    uintptr_t address = (uintptr_t)callback;
    return &t->recent[(address >> 4 ^ address >> 12) % SLOTS_RECENT];
}

/* Whether `callback` was taken lately and is still owned here: the same object then, not a
 * new one at an old address. */
static inline bool slots_remembers(slots *t, const PyObject *callback)
{
    slot *s = *slots_recent(t, callback);
    return s && s->callback == callback;
}

int slots_traverse(slots *t, visitproc visit, void *arg);

/* Drop every callable; the orders keep their slots. Runs finalizers. */
void slots_clear(slots *t);

/* Free the memory; nothing may hold a slot any more, and slots_clear came before. */
void slots_free(slots *t);

void slots_drain_returned(slots *t);

static inline void slots_drain(slots *t)
{
    if (atomic_load_explicit(&t->returned, memory_order_relaxed))
        slots_drain_returned(t);
}

#endif
