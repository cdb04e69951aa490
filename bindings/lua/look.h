/* look.h - a look at a store: what is asked for and what was seen, without Lua values.
 *
 * `make` is called on any thread, and `push` on that of the Lua state, with the results of a
 * method. The rest is for those two. */
#ifndef LAPSE_LUA_LOOK_H
#define LAPSE_LUA_LOOK_H

#include "glue.h"

typedef struct look {
    struct look *next;
    int64_t ticket;
    int64_t (*make)(struct look *l, lapse *s);
    int (*push)(lua_State *L, const struct look *l);
    int64_t result; /* of `make`; below 0: an error, and */
    char *words;    /* what it says */

    /* Asked for: */
    char *name; /* an id or a queue */
    unsigned states;
    int64_t number; /* a generation or a fence */

    /* Seen: */
    lapse_stats stats;
    lapse_queue_stats queue;
    char *text;
    lapse_info *infos; /* `count` of them */
    char **names;      /* likewise */
    size_t count, room;
} look;

/* A look for the thread; `name` may be NULL. NULL without memory. */
look *glue_new_look(int64_t (*make)(look *, lapse *), int (*push)(lua_State *, const look *),
                    const char *name);
void glue_free_look(look *l);

/* Begin it, and push its ticket; nil, message, code. It belongs to the thread then. NULL: there
 * was no memory for it. */
int glue_look_aside(lua_State *L, scheduler *s, look *l);

/* The next one that was made; NULL: none. It is the caller's. */
look *glue_next_look(scheduler *s);

#endif
