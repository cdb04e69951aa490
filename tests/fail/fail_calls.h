/* fail_calls.h - more that fails on command: strings, streams, system calls.
 *
 * Adds to fail_alloc.h what the engine calls beside malloc, and the counterpart of
 * `live`. A test that includes this is linked with --wrap for the functions of both. */
#ifndef LAPSE_TESTS_FAIL_CALLS_H
#define LAPSE_TESTS_FAIL_CALLS_H

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/timerfd.h>

#include "core/fail_alloc.h"

/* Calls of the system that fail on command: the first `calls_left` succeed. */
typedef enum failing_call { NO_CALL, TIMERFD_CREATE, PTHREAD_CREATE, GETRANDOM } failing_call;

static _Thread_local failing_call failing;
static _Thread_local long calls_left;
static atomic_long threads_live; /* started by this program; never counted down */

void __real_free(void *memory);
char *__real_strdup(const char *text);
int __real_timerfd_create(int clock, int flags);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
ssize_t __real_getrandom(void *out, size_t size, unsigned flags);
FILE *__real_open_memstream(char **text, size_t *size);
void __wrap_free(void *memory);
char *__wrap_strdup(const char *text);
int __wrap_timerfd_create(int clock, int flags);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
ssize_t __wrap_getrandom(void *out, size_t size, unsigned flags);
FILE *__wrap_open_memstream(char **text, size_t *size);

void __wrap_free(void *memory)
{
    live -= memory != NULL;
    __real_free(memory);
}

char *__wrap_strdup(const char *text)
{
    return refused() ? NULL : counted(__real_strdup(text));
}

/* The text is allocated where no wrapper sees it and freed where one does. What a stream
 * does when it cannot grow is seen in test_stream.c. */
FILE *__wrap_open_memstream(char **text, size_t *size)
{
    FILE *stream = refused() ? NULL : __real_open_memstream(text, size);
    live += stream != NULL;
    return stream;
}

static bool call_fails(failing_call call)
{
    return failing == call && calls_left-- <= 0;
}

int __wrap_timerfd_create(int clock, int flags)
{
    if (!call_fails(TIMERFD_CREATE))
        return __real_timerfd_create(clock, flags);
    errno = EMFILE;
    return -1;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg)
{
    if (call_fails(PTHREAD_CREATE))
        return EAGAIN;
    threads_live++;
    return __real_pthread_create(thread, attr, run, arg);
}

ssize_t __wrap_getrandom(void *out, size_t size, unsigned flags)
{
    if (!call_fails(GETRANDOM))
        return __real_getrandom(out, size, flags);
    errno = EAGAIN;
    return -1;
}

#endif
