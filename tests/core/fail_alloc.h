/* fail_alloc.h - memory that runs out on command, and a count of what is not given back.
 *
 * A test that includes this is linked with --wrap for the functions below. From the
 * moment fail_after reaches 0 every allocation of this thread fails, until it is
 * NO_FAILURE again (with fail_once: only that one fails); meanwhile nothing is asserted,
 * since check allocates too. What malloc gave and nobody freed is for the sanitizer and
 * valgrind to find, and for tests that include fail/fail_calls.h; none of them sees
 * mappings, which are counted here. */
#ifndef LAPSE_TESTS_FAIL_ALLOC_H
#define LAPSE_TESTS_FAIL_ALLOC_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

enum { NO_FAILURE = -1 };

static _Thread_local long fail_after = NO_FAILURE; /* allocations that still succeed */
static _Thread_local bool fail_once;               /* after one failure memory is back */
static _Thread_local long refusals;                /* allocations that failed */
static _Thread_local size_t most_refused;          /* bytes that calloc was to give and did not */
static atomic_long live;                           /* allocations, less what was freed */
static atomic_long map_calls;                      /* calls of mmap and munmap */
static bool unmap_refused;                         /* munmap answers ENOMEM */
static atomic_long map_live;                       /* mappings not given back */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *memory, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *memory, size_t size);

static bool refused(void)
{
    if (fail_after == 0) {
        errno = ENOMEM;
        refusals++;
        if (fail_once)
            fail_after = NO_FAILURE;
        return true;
    }
    fail_after -= fail_after > 0;
    return false;
}

static void *counted(void *memory)
{
    live += memory != NULL;
    return memory;
}

void *__wrap_malloc(size_t size)
{
    return refused() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size)
{
    if (!refused())
        return counted(__real_calloc(count, size));
    most_refused = count * size > most_refused ? count * size : most_refused;
    return NULL;
}

void *__wrap_realloc(void *old, size_t size)
{
    if (refused())
        return NULL;
    void *memory = __real_realloc(old, size);
    return old ? memory : counted(memory);
}

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    map_calls++;
    if (refused())
        return MAP_FAILED;
    void *memory = __real_mmap(at, size, protection, flags, fd, offset);
    map_live += memory != MAP_FAILED;
    return memory;
}

int __wrap_munmap(void *memory, size_t size)
{
    map_calls++;
    if (unmap_refused) {
        errno = ENOMEM;
        return -1;
    }
    map_live--;
    return __real_munmap(memory, size);
}

#endif
