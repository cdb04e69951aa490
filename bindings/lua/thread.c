/* thread.c - threads without signals; a bell is an eventfd. */
#define _GNU_SOURCE /* ppoll */
#include "thread.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

int thread_start(pthread_t *thread, void *(*serve)(void *), void *arg)
{
    sigset_t all, mask;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    int number = pthread_create(thread, NULL, serve, arg);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return number;
}

int bell_open(void)
{
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void bell_ring(int bell)
{
    uint64_t one = 1;
    while (write(bell, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

void bell_quiet(int bell)
{
    uint64_t rings;
    while (read(bell, &rings, sizeof rings) < 0 && errno == EINTR)
        continue;
}

void bell_wait(int bell, lapse_ns limit)
{
    struct timespec t = {.tv_sec = limit / 1000000000, .tv_nsec = limit % 1000000000};
    struct pollfd rung = {.fd = bell, .events = POLLIN};
    if (ppoll(&rung, 1, &t, NULL) > 0)
        bell_quiet(bell);
}
