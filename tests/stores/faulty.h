/* faulty.h - any durable store, behind the same table, with faults that a test asks for.
 *
 * It passes everything on to the store inside. A turn may fail before or after the store
 * inside has done it (then its answers are lost), wait, or have its renewals dropped or its
 * settlements refused. */
#ifndef LAPSE_TESTS_FAULTY_H
#define LAPSE_TESTS_FAULTY_H

#include <stdatomic.h>

#include "stores/durable.h"
#include "support/support.h"

typedef enum faulty_how {
    FAULT_NONE,
    FAULT_FAIL, /* not done; the code says so. Turns that only claim are spared */
    FAULT_LOSE, /* done, but nobody is told: LAPSE_EUNSURE */
} faulty_how;

typedef struct faulty {
    const lp_durable_ops *inside;
    const char *scheme; /* of the URL that the store inside is opened with, in place of "test" */

    atomic_int how;  /* faulty_how of the turns that are hit */
    atomic_int code; /* of FAULT_FAIL and `refusals` */
    atomic_int skip; /* so many turns that answer or claim something are spared first, */
    atomic_int hits; /* then so many are hit; below 0: all of them */

    atomic_bool offline;     /* every turn fails with LAPSE_EOFFLINE, until reconnect succeeds */
    atomic_bool no_opening;  /* open fails with LAPSE_EOFFLINE */
    atomic_bool no_renewals; /* what renews is not passed on, and answered LAPSE_EOFFLINE */
    atomic_int refusals;     /* so many settlements are not passed on, and answered `code` */
    _Atomic(gate *) wait;    /* turns wait for it, unless NULL */

    atomic_int turns, reconnects, hit, renewals_dropped;
} faulty;

/* What the scheme "test" opens while a test runs; all faults off. */
extern faulty faults;
extern const lp_durable_ops faulty_store;

/* Put `inside` behind the faults, and forget all faults. */
void faulty_begin(const lp_durable_ops *inside, const char *scheme);

/* From now on spare `skip` busy turns, then hit `hits`. */
void faulty_hit(faulty_how how, int code, int skip, int hits);

#endif
