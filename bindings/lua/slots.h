/* slots.h - the callbacks of a scheduler's orders, by number.
 *
 * They lie in the scheduler's own Lua table under small integers, never in the registry:
 * a scheduler that only its own callbacks refer to is collected with them. `arg` of an
 * order points to the cell of its number. */
#ifndef LAPSE_LUA_SLOTS_H
#define LAPSE_LUA_SLOTS_H

#include <stdint.h>

#include "compat.h"

enum { SLOTS_RECENT = 16 };

/* All zero is an empty one. Its address must not change. */
typedef struct slots {
    struct slot_page **pages;
    uint32_t page_count;
    uint32_t made;                 /* numbers 1 to `made` are in use or in one of the lists */
    uint32_t free;                 /* numbers to use again, linked by their cells; 0: none */
    uint32_t released;             /* numbers whose callbacks are still in the table */
    uint32_t recent[SLOTS_RECENT]; /* numbers of functions, by their addresses; 0: none */
} slots;

/* Put the callback at index `callback` into the table of the scheduler at index 1 and
 * return its number; 0 without memory. A function that is there already is counted, and has
 * one number. Where Lua has no memory it raises and nothing was changed. */
uint32_t slots_anchor(lua_State *L, slots *s, int callback);

void *slots_arg(const slots *s, uint32_t number);
uint32_t slots_number(const void *arg);

/* One order more for a callback that is anchored, by its `arg`. */
void slots_use(void *arg);

/* The lapse_release of every order: notes that its callback is to be let go of. */
void slots_release(void *arg);

/* None of these allocates. The scheduler is at index 1. */
void slots_drop(lua_State *L, slots *s, uint32_t number); /* its order was refused */
void slots_drain(lua_State *L, slots *s);                 /* let go of what was released */
void slots_forget(lua_State *L, slots *s);                /* let go of all of them */

void slots_close(slots *s);

#endif
