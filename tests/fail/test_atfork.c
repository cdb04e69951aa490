/* test_atfork.c - the first lapse_open of a process, when fork() cannot be watched. */
/* link: -Wl,--wrap=pthread_atfork */
#include <errno.h>

#include "support/support.h"

static bool refused;

int __real_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));
int __wrap_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));

int __wrap_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
    return refused ? ENOMEM : __real_pthread_atfork(prepare, parent, child);
}

/* It is refused for as long as memory is, and no longer. */
START_TEST(open_before_fork_is_watched)
{
    lapse *s;
    refused = true;
    ck_assert_int_eq(lapse_open(NULL, NULL, &s), LAPSE_ENOMEM);
    ck_assert_ptr_null(s);
    ck_assert_int_eq(lapse_open(NULL, NULL, &s), LAPSE_ENOMEM);
    refused = false;
    ck_assert_int_eq(lapse_open(NULL, NULL, &s), 0);
    ck_assert_int_eq(lapse_close(s, 0), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("atfork");
    tcase_add_test(add_group(suite, "atfork"), open_before_fork_is_watched);
    return run_suite(suite);
}
