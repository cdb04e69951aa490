/* test_crowd.c - more orders in memory than any table beside them has room for at first.
 *
 * An order that waits for a handler, and one under a policy that knows the oldest, has an entry in
 * a table as well as a record; these grow as far as the records do. */
/* tiers: quick full soak */
#include "../support/support.h"

#include <inttypes.h>
#include <stdio.h>

enum { CALL = 250, LATE = 1000 };

static lapse_verdict count(const lapse_order *order, void *arg)
{
    (void)order;
    ++*(int64_t *)arg;
    return LAPSE_DONE;
}

/* Above four million in full: as many entries had tables that ended too soon. */
static int64_t crowd(void)
{
    return tier(20000, 4400000, 40000000) / CALL * CALL;
}

static void schedule_call(lapse *s, int64_t from, lapse_ns delay)
{
    static char ids[CALL][24];
    lapse_spec specs[CALL];
    int64_t results[CALL];
    for (int i = 0; i < CALL; i++) {
        snprintf(ids[i], sizeof ids[i], "OID%" PRId64, from + i);
        specs[i] = (lapse_spec){.id = ids[i], .queue = "close_unpaid", .delay = delay};
    }
    int64_t accepted = lapse_schedule_many(s, specs, CALL, results);
    if (accepted != CALL)
        complain("of %d orders after %" PRId64 " only %" PRId64 " are accepted: %s", CALL, from,
                 accepted, lapse_error_detail());
}

static void schedule_all(lapse *s, int64_t orders)
{
    for (int64_t i = 0; i < orders; i += CALL)
        schedule_call(s, i, i + CALL == orders ? LAPSE_SECONDS(1) : LAPSE_SECONDS(2));
}

START_TEST(a_handler_has_as_many_orders_as_there_is_memory_for)
{
    rig r = rig_manual(_i, START, NULL);
    int64_t ran = 0;
    ck_assert_int_eq(lapse_handle(r.s, "close_unpaid", count, &ran, NULL, NULL), LAPSE_OK);
    schedule_all(r.s, crowd());
    ck_assert_int_eq(advance_once(&r, LAPSE_SECONDS(1)), CALL);
    ck_assert_int_eq(advance_once(&r, LAPSE_SECONDS(1)), crowd() - CALL);
    ck_assert_int_eq(ran, crowd());
    rig_close(&r);
}
END_TEST

START_TEST(the_oldest_of_as_many_gives_way)
{
    lapse_options options = {
        .max_pending = (uint64_t)crowd(), .overflow = LAPSE_DEAD_LETTER_OLDEST, .max_dead = LATE};
    rig r = rig_manual(_i, START, &options);
    schedule_all(r.s, crowd());
    for (int64_t i = 0; i < LATE; i += CALL)
        schedule_call(r.s, crowd() + i, LAPSE_SECONDS(2));
    ck_assert_uint_eq(stats_of(r.s).pending, (uint64_t)crowd());
    ck_assert_uint_eq(stats_of(r.s).dead, LATE);
    ck_assert_int_eq(lapse_cancel(r.s, "OID999", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_cancel(r.s, "OID1000", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("crowd");
    TCase *group = add_group(suite, "crowd");
    tcase_add_loop_test(group, a_handler_has_as_many_orders_as_there_is_memory_for, WHEEL, 1);
    tcase_add_loop_test(group, the_oldest_of_as_many_gives_way, WHEEL, 1);
    return run_suite(suite);
}
