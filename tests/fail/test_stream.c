/* test_stream.c - the text of lapse_metrics is whole, or it is an error. */
/* The C library's own stream of memory may fail to grow without a word, so its
 * allocations are refused too: this program's malloc stands before everybody's. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

enum { NO_FAILURE = -1 };

static _Thread_local long fail_after = NO_FAILURE, refusals;
static _Thread_local bool fail_once;

static bool refused(void)
{
    if (fail_after == 0) {
        refusals++;
        if (fail_once)
            fail_after = NO_FAILURE;
        return true;
    }
    fail_after -= fail_after > 0;
    return false;
}

void *malloc(size_t size)
{
    static void *(*next)(size_t);
    if (refused())
        return NULL;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "malloc");
    return next(size);
}

void *realloc(void *old, size_t size)
{
    static void *(*next)(void *, size_t);
    if (refused())
        return NULL;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "realloc");
    return next(old, size);
}

START_TEST(metrics_are_whole)
{
    rig r = rig_manual(WHEEL, START, NULL);
    for (int i = 0; i < 40; i++) {
        char queue[64];
        snprintf(queue, sizeof queue, "a queue with a name that is not short, number %d", i);
        lapse_spec spec = {.id = queue, .queue = queue};
        ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    }
    char *whole = lapse_metrics(r.s);
    ck_assert_ptr_nonnull(whole);
    ck_assert_ptr_nonnull(strstr(whole, "short, number 39\"} 1\n"));
    long n = 0;
    for (bool refused_one = true; refused_one; n++) {
        refusals = 0;
        fail_once = n % 2;
        fail_after = n / 2;
        char *text = lapse_metrics(r.s);
        fail_after = NO_FAILURE;
        refused_one = refusals > 0;
        ck_assert_msg(!text || strcmp(text, whole) == 0,
                      "allocation %ld%s: the text ends after %zu "
                      "of %zu bytes",
                      n / 2, n % 2 ? "" : " and all after it", strlen(text), strlen(whole));
        ck_assert(text || refused_one);
        lapse_free(text);
    }
    ck_assert_int_gt(n, 2 * 3);
    lapse_free(whole);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stream");
    tcase_add_test(add_group(suite, "stream"), metrics_are_whole);
    return run_suite(suite);
}
