/* sqlite_schema.c - the file: whether it may be used, and the tables in it.
 *
 * To change the tables: raise LP_SQLITE_VERSION, add the step from the version before to
 * `steps`, and a file of that version to tests/stores/golden. A step runs in one transaction
 * with all before it. The file may be the application's own, so nothing but tables named
 * lapse_* is touched: not its user_version, not its application_id. */
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/wake.h"
#include "stores/sqlite.h"

/* -- Tables -- */

/* Version 1. `ahead` and `clock` are as sqlite_clock.c says; `due` and `generation` of an
 * order are null where they are `at` and `seq`. */
static const char create[] =
    "CREATE TABLE lapse_meta (one INTEGER PRIMARY KEY CHECK (one = 1),"
    " version INTEGER NOT NULL, boot TEXT NOT NULL, ahead INTEGER NOT NULL,"
    " clock INTEGER NOT NULL, seq INTEGER NOT NULL, fence INTEGER NOT NULL,"
    " fence_top INTEGER NOT NULL, keep INTEGER NOT NULL, ended INTEGER NOT NULL,"
    " wall INTEGER NOT NULL);"
    "CREATE TABLE lapse_queue (id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE,"
    " orders INTEGER NOT NULL, dead INTEGER NOT NULL);"
    "CREATE TABLE lapse_order (seq INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE,"
    " at INTEGER NOT NULL, queue INTEGER NOT NULL, attempt INTEGER NOT NULL DEFAULT 0,"
    " no_more INTEGER NOT NULL DEFAULT 0, fence INTEGER, due INTEGER, generation INTEGER,"
    " crc INTEGER NOT NULL, payload BLOB);"
    "CREATE INDEX lapse_order_at ON lapse_order (queue, at);"
    "CREATE INDEX lapse_order_held ON lapse_order (queue, at) WHERE fence IS NOT NULL;"
    "CREATE INDEX lapse_order_no_more ON lapse_order (at) WHERE no_more = 1;"
    "CREATE TABLE lapse_ended (seq INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE,"
    " generation INTEGER NOT NULL, queue INTEGER NOT NULL, attempt INTEGER NOT NULL,"
    " due INTEGER NOT NULL, ended INTEGER NOT NULL);"
    "CREATE TABLE lapse_dead (seq INTEGER PRIMARY KEY, id BLOB NOT NULL,"
    " generation INTEGER NOT NULL, queue INTEGER NOT NULL, attempt INTEGER NOT NULL,"
    " due INTEGER NOT NULL, died INTEGER NOT NULL, reason INTEGER NOT NULL, error BLOB,"
    " named INTEGER NOT NULL, crc INTEGER NOT NULL, payload BLOB);"
    "CREATE INDEX lapse_dead_id ON lapse_dead (id, generation);"
    "INSERT INTO lapse_meta VALUES (1, 1, '', 0, 0, 0, 0, 0, 0, 0, 0);"
    "INSERT INTO lapse_queue VALUES (0, x'', 0, 0);";

/* steps[v] makes version v + 1 of version v. */
static const char *const steps[LP_SQLITE_VERSION] = {create};

/* The version of the tables that are there, 0 for none; -1 and `failed`. */
static int64_t find_version(session *s)
{
    sqlite3_stmt *st;
    int64_t version = 0;
    int rc = sqlite3_prepare_v2(
        s->db, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'lapse_meta'", -1, &st,
        NULL);
    if (rc == SQLITE_OK) {
        rc = sqlite3_step(st);
        sqlite3_finalize(st);
    }
    if (rc == SQLITE_ROW)
        rc = sqlite3_prepare_v2(s->db, "SELECT version FROM lapse_meta", -1, &st, NULL);
    else if (rc == SQLITE_DONE)
        return 0;
    if (rc == SQLITE_OK) {
        rc = sqlite3_step(st);
        version = rc == SQLITE_ROW ? sqlite3_column_int64(st, 0) : 0;
        sqlite3_finalize(st);
    }
    if (rc == SQLITE_ROW)
        return version;
    s->failed = rc == SQLITE_DONE ? SQLITE_CORRUPT : rc;
    return -1;
}

static bool set_version(session *s)
{
    char text[80];
    sqlite3_snprintf(sizeof text, text, "UPDATE lapse_meta SET version = %d", LP_SQLITE_VERSION);
    return lp_sqlite_exec(s, text);
}

int lp_sqlite_schema(session *s)
{
    int64_t version = find_version(s);
    if (version < 0)
        return lp_sqlite_error(s);
    if (version > LP_SQLITE_VERSION)
        return lp_fail(LAPSE_EDATA,
                       "the database has the tables of a newer lapse (version %lld, this one knows "
                       "%d): install that, or use another file",
                       (long long)version, LP_SQLITE_VERSION);
    if (version == LP_SQLITE_VERSION)
        return LAPSE_OK;
    for (; version < LP_SQLITE_VERSION; version++)
        if (!lp_sqlite_exec(s, steps[version]))
            return lp_sqlite_error(s);
    s->changed = true;
    return set_version(s) ? LAPSE_OK : lp_sqlite_error(s);
}

/* -- The file -- */

const char *lp_sqlite_shared_fs(unsigned long type)
{
    static const struct {
        unsigned long type;
        const char *name;
    } table[] = {
        {0x6969, "NFS"},
        {0x517b, "SMB"},
        {0xfe534d42, "SMB"},
        {0xff534d42, "CIFS"},
        {0x01021997, "9p"},
        {0x00c36400, "Ceph"},
        {0x65735546, "FUSE"},
        {0x73757245, "Coda"},
        {0x5346414f, "AFS"},
        {0x6b414653, "AFS"},
        {0x0bd00bd0, "Lustre"},
        {0x47504653, "GPFS"},
        {0x7461636f, "OCFS2"},
        {0x01161970, "GFS2"},
        {0x786f4256, "a VirtualBox share"},
        {0xbacbacbc, "a VMware share"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].type == (type & 0xffffffff))
            return table[i].name;
    return NULL;
}

/* Clear words for what SQLite would only say "unable to open" to. */
static int check_folder(const char *path)
{
    struct stat st;
    struct statfs fs;
    char *copy = strdup(path);
    if (!copy)
        return lp_fail_memory();
    const char *folder = dirname(copy);
    const char *shown = lp_text_quote(folder, strnlen(folder, 200));
    int code = LAPSE_OK;
    if (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode))
        code = lp_fail(LAPSE_EURL,
                       "the folder %s does not exist: make it first (an absolute path has four "
                       "slashes, as sqlite:////absolute/path/orders.db)",
                       shown);
    else if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        code = lp_fail(LAPSE_EURL, "%s is a folder: name a file in it",
                       lp_text_quote(path, strnlen(path, 200)));
    else if (access(path, F_OK) != 0 && access(folder, W_OK | X_OK) != 0)
        code =
            lp_fail(LAPSE_ESYSTEM,
                    "the folder %s cannot be written by this user: see to its permissions", shown);
    else if (statfs(folder, &fs) == 0 && lp_sqlite_shared_fs((unsigned long)fs.f_type))
        code = lp_fail(LAPSE_EUNSUPPORTED,
                       "the folder %s is on %s: SQLite's files must be on a disk of this machine",
                       shown, lp_sqlite_shared_fs((unsigned long)fs.f_type));
    free(copy);
    return code;
}

/* Ask again with growing pauses until the time is over. */
static int wait_for_lock(void *limit, int tries)
{
    lapse_ns most = *(const lapse_ns *)limit;
    lapse_ns pause = LAPSE_US(200) * (tries < 5 ? 1 << tries : 25);
    lapse_ns spent =
        tries < 5 ? LAPSE_US(200) * ((1 << tries) - 1) : LAPSE_US(6200) + LAPSE_MS(5) * (tries - 5);
    if (spent >= most)
        return 0;
    lp_wake_pause(pause);
    return 1;
}

/* The journal mode that SQLite answers with. */
static int set_wal(sqlite3 *db, bool *out)
{
    sqlite3_stmt *st;
    int rc = sqlite3_prepare_v2(db, "PRAGMA journal_mode = WAL", -1, &st, NULL);
    if (rc != SQLITE_OK)
        return rc;
    rc = sqlite3_step(st);
    const char *mode = rc == SQLITE_ROW ? (const char *)sqlite3_column_text(st, 0) : NULL;
    *out = mode && strcmp(mode, "wal") == 0;
    sqlite3_finalize(st);
    return rc == SQLITE_ROW ? SQLITE_OK : rc;
}

/* While others have the file open with a rollback journal it cannot be switched. */
static int switch_to_wal(sqlite3 *db, lapse_ns busy)
{
    bool is_wal = false;
    int rc, tries = 0;
    while ((rc = set_wal(db, &is_wal)) == SQLITE_BUSY && wait_for_lock(&busy, tries))
        tries++;
    if ((rc & 0xff) == SQLITE_BUSY)
        return lp_fail(LAPSE_ETIMEOUT,
                       "the database cannot be switched to a write-ahead log while another "
                       "connection uses it: run PRAGMA journal_mode = WAL on it once");
    if (rc != SQLITE_OK)
        return lp_sqlite_fail(db, rc, "opening");
    if (!is_wal)
        return lp_fail(LAPSE_EUNSUPPORTED,
                       "SQLite keeps no write-ahead log for this database: use a file on a disk "
                       "of this machine");
    return LAPSE_OK;
}

static int prepare(sqlite3 *db, lapse_ns *busy)
{
    sqlite3_busy_handler(db, wait_for_lock, busy);
    sqlite3_extended_result_codes(db, 1);
    int rc = sqlite3_exec(db, "SELECT count(*) FROM sqlite_master", NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return lp_sqlite_fail(db, rc, "opening");
    if (sqlite3_db_readonly(db, "main") == 1)
        return lp_sqlite_fail(db, SQLITE_READONLY, "opening");
    int code = switch_to_wal(db, *busy);
    if (code < 0)
        return code;
    rc = sqlite3_exec(db,
                      "PRAGMA wal_autocheckpoint = 0; PRAGMA journal_size_limit = 67108864;"
                      "PRAGMA cache_size = -49152; PRAGMA temp_store = MEMORY;"
                      "PRAGMA trusted_schema = OFF; PRAGMA recursive_triggers = OFF",
                      NULL, NULL, NULL);
    return rc == SQLITE_OK ? LAPSE_OK : lp_sqlite_fail(db, rc, "opening");
}

int lp_sqlite_connect(const char *path, bool may_create, lapse_ns *busy, sqlite3 **out)
{
    if (sqlite3_threadsafe() == 0)
        return lp_fail(LAPSE_EUNSUPPORTED, "this SQLite was built without threads: use another");
    if (sqlite3_libversion_number() < 3035000)
        return lp_fail(LAPSE_EUNSUPPORTED, "SQLite %s is too old: use 3.35 or newer",
                       sqlite3_libversion());
    int code = check_folder(path);
    if (code < 0)
        return code;
    sqlite3 *db = NULL;
    int how = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (may_create ? SQLITE_OPEN_CREATE : 0);
    int rc = sqlite3_open_v2(path, &db, how, NULL);
    code = rc == SQLITE_OK ? prepare(db, busy) : lp_sqlite_fail(db, rc, "opening");
    if (code < 0) {
        sqlite3_close(db);
        return code;
    }
    *out = db;
    return LAPSE_OK;
}
