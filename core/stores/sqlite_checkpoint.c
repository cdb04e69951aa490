/* sqlite_checkpoint.c - bring the write-ahead log back into the database, beside the work.
 *
 * A thread with a connection of its own, which blocks all signals. When the log has grown to
 * GROWN, most of it is copied while others write; then, with the gate shut, the small rest, so
 * that the log is empty and the next writer begins it anew. A reader that stays in the log, or
 * another process's checkpointer, may hinder that: then it is tried again when the log has
 * grown further. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/sqlite.h"

static const int64_t GROWN = INT64_C(64) << 20;

struct checkpointer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool wanted, quit; /* under lock */
    int64_t next;      /* under lock: the size from which on it is wanted */
    guarded guard;
    sqlite3 *db; /* while guarded */
    char boot[LP_BOOT_LEN + 1];
    char path[];
};

static sqlite3 *connect(const char *path)
{
    sqlite3 *db = NULL;
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) ==
            SQLITE_OK &&
        sqlite3_exec(db, "PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -512", NULL, NULL,
                     NULL) == SQLITE_OK)
        return db;
    sqlite3_close(db);
    return NULL;
}

/* Copy what the log holds as of now, without waiting for anybody. */
static void copy_log(sqlite3 *db)
{
    sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
}

static void checkpoint(const checkpointer *c, sqlite3 *db)
{
    copy_log(db);
    side *b = lp_side_open(c->path, c->boot, false);
    if (b && lp_side_enter(b, LAPSE_SECONDS(1))) {
        copy_log(db);
        lp_side_leave(b);
    }
    lp_side_close(b);
}

static void *run(void *arg)
{
    checkpointer *c = arg;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->wanted && !c->quit)
            pthread_cond_wait(&c->change, &c->lock);
        if (c->quit)
            break;
        pthread_mutex_unlock(&c->lock);
        lp_guard_begin(&c->guard);
        if (!c->db)
            c->db = connect(c->path);
        if (c->db)
            checkpoint(c, c->db);
        lp_guard_end(&c->guard);
        pthread_mutex_lock(&c->lock);
        c->wanted = false;
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* In a child, whose parent's it is. */
static void let_go(void *checkpointer_)
{
    checkpointer *c = checkpointer_;
    lp_sqlite_abandon(c->db);
    c->db = NULL;
}

int lp_checkpointer_open(const char *path, const char *boot, checkpointer **out)
{
    size_t size = strlen(path) + 1;
    checkpointer *c = calloc(1, sizeof *c + size);
    if (!c)
        return lp_fail_memory();
    memcpy(c->path, path, size);
    strncpy(c->boot, boot, sizeof c->boot - 1);
    c->next = GROWN;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->change, NULL);
    lp_guard_add(&c->guard, c, let_go);
    sigset_t all, mask;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    int number = pthread_create(&c->thread, NULL, run, c);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    if (number) {
        lp_guard_remove(&c->guard);
        free(c);
        return lp_fail_system("pthread_create", number);
    }
    *out = c;
    return LAPSE_OK;
}

void lp_checkpointer_close(checkpointer *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->quit = true;
    pthread_cond_signal(&c->change);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    lp_guard_remove(&c->guard);
    sqlite3_close(c->db);
    pthread_cond_destroy(&c->change);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void lp_checkpointer_note(checkpointer *c, int64_t bytes)
{
    if (bytes < GROWN / 2) /* Begun anew. */
        bytes = 0;
    pthread_mutex_lock(&c->lock);
    if (bytes == 0) {
        c->next = GROWN;
    } else if (bytes >= c->next && !c->wanted) {
        c->next = bytes + GROWN / 4; /* Once more if this one does not succeed. */
        c->wanted = true;
        pthread_cond_signal(&c->change);
    }
    pthread_mutex_unlock(&c->lock);
}
