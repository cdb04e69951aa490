/* lapse_postgresql.h - schedule and cancel inside the application's own PostgreSQL transaction.
 *
 *     PQexec(conn, "BEGIN");
 *     PQexec(conn, "INSERT INTO orders ...");
 *     lapse_postgresql_put(conn, NULL,
 *                          &(lapse_spec){.id = "OID1", .queue = "close", .delay = delay});
 *     PQexec(conn, "COMMIT");
 *
 * The order and its timeout are committed together or not at all: nothing runs before the
 * commit, and nothing is left after a rollback or a crash. The tables and functions of lapse,
 * all named lapse_*, are in the database of `conn`, in `schema`: the one that the consumers name
 * in their URL ("postgresql://user@host/shop?schema=shop"), or NULL for what the search path
 * finds first. They are there once a consumer has opened the store, or `lapse migrate` was run.
 *
 * From any other language the same is a function in the database:
 *
 *     SELECT lapse_schedule('OID1', interval '30 minutes', 'close');
 *     SELECT lapse_cancel('OID1');
 *
 * The delay counts from the call, by the server's clock. Consumers are not told of the commit:
 * they find the order when they look next, which is after the URL option `poll` (500 ms) at the
 * latest. So an order with a longer delay than that is not late, and one that is due at once,
 * or whose delay has passed when its transaction commits, is late by `poll` at most. The options
 * of lapse_open that limit what is accepted (max_pending) do not hold here.
 *
 * As long as the transaction is open its order is locked: others that schedule or cancel the
 * same id wait a second for it, and are told LAPSE_ETIMEOUT then.
 *
 * `conn` must have no query under way and not be in pipeline mode. Installed when the library
 * was built with libpq. */
#ifndef LAPSE_POSTGRESQL_H
#define LAPSE_POSTGRESQL_H

#include <libpq-fe.h>

#include "lapse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Schedule what `spec` says: as lapse_put, for the handler of its queue. `fn`, `arg` and
 * `release` are NULL. Returns the order's generation.
 * Errors: those of lapse_put, after which the transaction goes on as if the call had not been
 * made; LAPSE_EUNSUPPORTED (a callback of its own); LAPSE_EOFFLINE, LAPSE_EDATA (no tables),
 * LAPSE_ESYSTEM, LAPSE_ETIMEOUT, after which a transaction can only be rolled back. */
LAPSE_API int64_t lapse_postgresql_put(PGconn *conn, const char *schema, const lapse_spec *spec);

/* Cancel: as lapse_cancel. The answer holds once the transaction is committed. */
LAPSE_API int lapse_postgresql_cancel(PGconn *conn, const char *schema, const char *id,
                                      int64_t generation);

#ifdef __cplusplus
}
#endif

#endif
