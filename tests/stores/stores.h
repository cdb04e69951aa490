/* stores.h - the stores, and what the tests that run on each of them share.
 *
 * A place is where the orders of one test live: a fresh URL of one store. Opening it again
 * is looking at the same orders again, when the store is durable. A test is written once
 * and runs for each store of the table; what a store cannot do by its own word
 * (lapse_abilities) is skipped with a line that says so. Adding a store is adding a row. */
#ifndef LAPSE_TESTS_STORES_H
#define LAPSE_TESTS_STORES_H

#include "cases/delivery.h"

/* The stores of this build, numbered from 0; known from stores_main on. LAPSE_STORES names
 * those wanted, "redis,sqlite"; without it they are those that need no server. */
int store_count(void);
const char *store_name(int store);

/* What a store can do: lapse_ability bits. */
unsigned store_abilities(int store);

/* How many orders of those wanted a test may put into this store. */
int store_most(int store, long wanted);

/* Register a test once for each store; `_i` is the store's number in it. */
#define ADD_FOR_STORES(tcase, test) tcase_add_loop_test(tcase, test, 0, store_count())

/* The script in tests/servers that has started its server; NULL: it needs none. */
const char *store_server(int store);

/* Have that script do "kill" or "start" to the server of this run: what tests of lost
 * connections need. What it prints, one line, goes to `line`, which may be NULL. */
void server_do(const char *server, const char *verb, char *line, size_t size);

/* Open the table, make and run the suite, remove the files; for main to return. */
int stores_main(const char *name, void (*fill)(Suite *suite));

/* -- Places ---------------------------------------------------------------------------- */

typedef struct place {
    int store;
    char url[512];
    lapse_ns tick;
} place;

/* A fresh one; `options` go into its URL ("keep=1h&lease=5s"), or NULL. */
place new_place(int store, const char *options);

/* One more option for those who open it from now on. */
void add_option(place *p, const char *option);

/* Open it under a manual clock of its own, which starts at START. */
rig open_place(const place *p, const lapse_options *options);

/* Open it once more under the clock of `r`; the rig shares that clock. */
rig join_place(const place *p, const rig *r, const lapse_options *options);

/* Close what join_place opened; the clock stays. */
void leave_place(rig *r);

/* Close and open it again under the same clock, with handlers forgotten. */
void reopen_place(const place *p, rig *r, const lapse_options *options);

/* Open it under the real clock. */
rig open_real(const place *p, const lapse_options *options);

/* open_place of a fresh place. */
rig fresh(int store, const lapse_options *options);
rig fresh_real(int store, const lapse_options *options);

/* Whether the store can do all that; if not, says that the test is skipped. */
bool able(const rig *r, const char *test, unsigned abilities);
bool store_able(int store, const char *test, unsigned abilities);

/* Whether other processes see its orders; if not, says that the test is skipped. */
bool shared_by_processes(int store, const char *test);

/* At the head of a test: close and leave it when the store cannot. */
#define NEEDS(r, abilities)                                                                        \
    do {                                                                                           \
        if (!able(r, __func__, abilities)) {                                                       \
            rig_close(r);                                                                          \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* The same before it is opened. */
#define STORE_NEEDS(store, abilities)                                                              \
    do {                                                                                           \
        if (!store_able(store, __func__, abilities))                                               \
            return;                                                                                \
    } while (0)

#define NEEDS_PROCESSES(r, store)                                                                  \
    do {                                                                                           \
        NEEDS(r, LAPSE_CAN_SHARE);                                                                 \
        if (!shared_by_processes(store, __func__)) {                                               \
            rig_close(r);                                                                          \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* A path in the folder of this run, which is removed at its end. */
void new_path(char *out, size_t size, const char *name);

/* -- Orders ---------------------------------------------------------------------------- */

/* Poll for an order that must be `id`, and settle it as done. */
void finish_one(lapse *s, const char *queue, const char *id);

/* A look at an order that must exist; free it with lapse_info_free. */
lapse_info look(lapse *s, const char *id);

/* -- Other processes --------------------------------------------------------------------- */

/* A part that this program plays when it is started by itself with its name. */
typedef int (*part_fn)(int argc, char **argv);
typedef struct part {
    const char *name;
    part_fn play;
} part;

/* When argv names a part: play it and exit. For the start of main. */
void play_part(int argc, char **argv, const part *parts, size_t count);

/* Start this program as the part `argv[0]` with the arguments after it, up to NULL; its
 * standard output, if `out` is not NULL, can be read from *out. */
pid_t start_part(const char *const *argv, int *out);

/* Wait for its end: what it exited with, or minus the signal that killed it. */
int end_of(pid_t pid);

#endif
