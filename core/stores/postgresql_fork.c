/* postgresql_fork.c - a child process lets go of its parent's connections.
 *
 * A child that speaks on an inherited connection, if only to end it, breaks its parent's; one
 * that keeps it open keeps the server from noticing when the parent dies, and the parent's
 * locks with it. So in a child the descriptors are closed, and nothing else is done. */
#include <pthread.h>
#include <unistd.h>

#include "base/error.h"
#include "stores/postgresql.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* over what follows, and `sockets` */
static postgresql_store *ours;
static bool watching;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    for (postgresql_store *d = ours; d; d = d->next)
        for (int i = 0; i < 2; i++)
            if (d->sockets[i] >= 0)
                close(d->sockets[i]);
    ours = NULL;
    pthread_mutex_unlock(&lock);
}

int lp_postgresql_guard(postgresql_store *d)
{
    pthread_mutex_lock(&lock);
    int number = watching ? 0 : pthread_atfork(before_fork, in_parent, in_child);
    watching = number == 0;
    d->sockets[0] = d->sockets[1] = -1;
    if (watching) {
        d->before = NULL;
        d->next = ours;
        if (ours)
            ours->before = d;
        ours = d;
        d->guarded = true;
    }
    pthread_mutex_unlock(&lock);
    return number ? lp_fail_system("pthread_atfork", number) : LAPSE_OK;
}

void lp_postgresql_unguard(postgresql_store *d)
{
    pthread_mutex_lock(&lock);
    if (d->guarded) {
        *(d->before ? &d->before->next : &ours) = d->next;
        if (d->next)
            d->next->before = d->before;
        d->guarded = false;
    }
    pthread_mutex_unlock(&lock);
}

void lp_postgresql_note_sockets(postgresql_store *d)
{
    pthread_mutex_lock(&lock);
    d->sockets[0] = d->s.conn ? PQsocket(d->s.conn) : -1;
    d->sockets[1] = d->listener ? PQsocket(d->listener) : -1;
    pthread_mutex_unlock(&lock);
}
