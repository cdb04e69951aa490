/* wake.c - one descriptor that is readable when there is something to do. */
#define _GNU_SOURCE /* ppoll */
#include "wake.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "error.h"

static struct timespec to_timespec(lapse_ns t)
{
    return (struct timespec){.tv_sec = t / 1000000000, .tv_nsec = t % 1000000000};
}

int lp_wake_open(void)
{
    int fd = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
    return fd < 0 ? lp_fail_system("timerfd_create", errno) : fd;
}

void lp_wake_close(int fd)
{
    close(fd);
}

void lp_wake_at(int fd, lapse_ns instant)
{
    struct itimerspec when = {0}; /* all zero disarms */
    if (instant != LAPSE_FOREVER)
        when.it_value = to_timespec(instant < 1 ? 1 : instant);
    timerfd_settime(fd, TFD_TIMER_ABSTIME, &when, NULL);
}

void lp_wake_now(int fd)
{
    lp_wake_at(fd, 1);
}

int lp_bell_open(void)
{
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return fd < 0 ? lp_fail_system("eventfd", errno) : fd;
}

void lp_bell_ring(int fd)
{
    eventfd_write(fd, 1);
}

void lp_bell_quiet(int fd)
{
    eventfd_t rings;
    eventfd_read(fd, &rings);
}

int lp_wake_wait_any(const int *fds, int count, lapse_ns timeout)
{
    struct pollfd p[4];
    struct timespec limit = to_timespec(timeout < 0 ? 0 : timeout);
    for (int i = 0; i < count; i++)
        p[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    int n = ppoll(p, (nfds_t)count, timeout == LAPSE_FOREVER ? NULL : &limit, NULL);
    if (n < 0)
        return errno == EINTR ? LAPSE_EINTR : 0;
    int readable = 0;
    for (int i = 0; i < count; i++)
        readable |= p[i].revents ? 1 << i : 0;
    return readable;
}

int lp_wake_wait(int fd, lapse_ns timeout)
{
    return lp_wake_wait_any(&fd, 1, timeout);
}

void lp_wake_pause(lapse_ns duration)
{
    struct timespec limit = to_timespec(duration);
    ppoll(NULL, 0, &limit, NULL);
}
