/* lapse_sqlite.h - schedule and cancel inside the application's own SQLite transaction.
 *
 *     sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
 *     sqlite3_exec(db, "INSERT INTO orders ...", NULL, NULL, NULL);
 *     lapse_sqlite_put(db, &(lapse_spec){.id = "OID1", .queue = "close", .delay = delay});
 *     sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
 *
 * The order and its timeout are committed together or not at all: nothing runs before the
 * commit, and nothing is left after a rollback or a crash. lapse keeps its tables, all named
 * lapse_*, in the database of `db`, the file that the consumers open with lapse_open
 * ("sqlite:////var/lib/shop/shop.db"). They are made when they are not there yet.
 *
 * Begin the transaction with BEGIN IMMEDIATE and set a busy timeout: a transaction that has
 * read first cannot write once another has written, and SQLite says so at once
 * (LAPSE_ETIMEOUT, "database is locked"). Outside of a transaction a call is one of its own.
 *
 * Consumers are not told of the commit: they find the order when they look next, which is
 * after the URL option `poll` (500 ms) at the latest. So an order with a longer delay than
 * that is not late, and one that is due at once is late by `poll` at most. The options of
 * lapse_open that limit what is accepted (max_pending) do not hold here.
 *
 * A program that is linked with two copies of SQLite must not open one file with both: that
 * breaks its locks. This library uses the shared one.
 *
 * Installed when the library was built with SQLite. */
#ifndef LAPSE_SQLITE_H
#define LAPSE_SQLITE_H

#include <sqlite3.h>

#include "lapse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Schedule what `spec` says: as lapse_put, for the handler of its queue. `fn`, `arg` and
 * `release` are NULL. Returns the order's generation.
 * Errors: those of lapse_put; LAPSE_EUNSUPPORTED (a callback of its own), LAPSE_ETIMEOUT (the
 * database is locked), LAPSE_EDATA, LAPSE_ESYSTEM. The transaction goes on as if the call had
 * not been made, unless SQLite itself rolled it back (disk full; sqlite3_get_autocommit
 * tells). */
LAPSE_API int64_t lapse_sqlite_put(sqlite3 *db, const lapse_spec *spec);

/* Cancel: as lapse_cancel. The answer holds once the transaction is committed. */
LAPSE_API int lapse_sqlite_cancel(sqlite3 *db, const char *id, int64_t generation);

#ifdef __cplusplus
}
#endif

#endif
