/* wake.c - one descriptor that is readable when there is something to do. */
#define _GNU_SOURCE /* ppoll */
#include "wake.h"

#include <errno.h>
#include <poll.h>
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

int lp_wake_wait(int fd, lapse_ns timeout)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct timespec limit = to_timespec(timeout < 0 ? 0 : timeout);
    int n = ppoll(&p, 1, timeout == LAPSE_FOREVER ? NULL : &limit, NULL);
    if (n < 0)
        return errno == EINTR ? LAPSE_EINTR : 0;
    return n;
}

void lp_wake_pause(lapse_ns duration)
{
    struct timespec limit = to_timespec(duration);
    ppoll(NULL, 0, &limit, NULL);
}
