/* sqlite_fork.c - a child process that opens the store anew.
 *
 * SQLite has one table of open files in a process, in which it notes what locks it holds. A
 * child inherits the table but not the locks, so that a connection it opened to the same file
 * would rely on locks that only the parent has. Therefore fork() waits until no connection
 * of ours is in a transaction, and before a child opens its first one it closes those that it
 * inherited: idle ones, without a checkpoint, which changes nothing but the child's table.
 * A child that opens none touches nothing. */
#include <stdatomic.h>

#include "base/error.h"
#include "stores/sqlite.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while a store is opened */
/* Passed on the way to a transaction, held by who wants to fork: so it comes to its turn. */
static pthread_mutex_t turnstile = PTHREAD_MUTEX_INITIALIZER;
static guarded *ours;      /* under lock */
static guarded *inherited; /* in a child: its parent's, until they are closed */
static atomic_bool watching;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_lock(&turnstile);
    for (guarded *g = ours; g; g = g->next)
        pthread_mutex_lock(&g->busy);
}

static void unlock_all(void)
{
    for (guarded *g = ours; g; g = g->next)
        pthread_mutex_unlock(&g->busy);
    pthread_mutex_unlock(&turnstile);
}

static void in_parent(void)
{
    unlock_all();
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    unlock_all();
    guarded **end = &inherited;
    while (*end)
        end = &(*end)->next;
    *end = ours;
    ours = NULL;
    pthread_mutex_unlock(&lock);
}

int lp_guard_enter(void)
{
    if (!atomic_load(&watching)) {
        /* Two that come first together register twice; the locks are not recursive, so that
         * must not be. */
        pthread_mutex_lock(&lock);
        bool first = !atomic_load(&watching);
        int number = first ? pthread_atfork(before_fork, in_parent, in_child) : 0;
        atomic_store(&watching, number == 0);
        pthread_mutex_unlock(&lock);
        if (number)
            return lp_fail_system("pthread_atfork", number);
    }
    pthread_mutex_lock(&lock);
    for (; inherited; inherited = inherited->next)
        inherited->let_go(inherited->owner);
    return LAPSE_OK;
}

void lp_guard_leave(void)
{
    pthread_mutex_unlock(&lock);
}

void lp_guard_begin(guarded *g)
{
    pthread_mutex_lock(&turnstile);
    pthread_mutex_lock(&g->busy);
    pthread_mutex_unlock(&turnstile);
}

void lp_guard_end(guarded *g)
{
    pthread_mutex_unlock(&g->busy);
}

void lp_guard_add(guarded *g, void *owner, void (*let_go)(void *owner))
{
    g->owner = owner;
    g->let_go = let_go;
    pthread_mutex_init(&g->busy, NULL);
    g->before = NULL;
    g->next = ours;
    if (ours)
        ours->before = g;
    ours = g;
}

void lp_guard_remove(guarded *g)
{
    if (!g->owner)
        return;
    *(g->before ? &g->before->next : &ours) = g->next;
    if (g->next)
        g->next->before = g->before;
    pthread_mutex_destroy(&g->busy);
    g->owner = NULL;
}

void lp_sqlite_abandon(sqlite3 *db)
{
    if (!db)
        return;
    sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    for (sqlite3_stmt *st; (st = sqlite3_next_stmt(db, NULL));)
        sqlite3_finalize(st);
    sqlite3_close(db);
}
