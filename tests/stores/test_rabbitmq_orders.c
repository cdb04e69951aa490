/* test_rabbitmq_orders.c - orders on their way through a broker of our own: routes, confirms, dead
 * letters, lost connections. Real time, since the broker's clock is real. */
/* servers: rabbitmq */
/* tiers: soak */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "stores/rabbitmq.h"
#include "stores/rabbitmq_ticket.h"
#include "stores/rabbitmq_turns.h"
#include "stores/stores.h"

/* -- Routes: no broker -------------------------------------------------------------------------- */

START_TEST(a_delay_is_rounded_up)
{
    const lapse_ns step = LAPSE_MS(LP_RABBIT_STEP_MS);
    ck_assert_uint_eq(lp_rabbit_steps(0), 0);
    ck_assert_uint_eq(lp_rabbit_steps(-1), 0);
    ck_assert_uint_eq(lp_rabbit_steps(1), 1);
    ck_assert_uint_eq(lp_rabbit_steps(step), 1);
    ck_assert_uint_eq(lp_rabbit_steps(step + 1), 2);
    for (int i = 0; i < 1000; i++) {
        lapse_ns delay = (lapse_ns)(random() % 1000000) * (lapse_ns)(random() % 1000000);
        uint64_t steps = lp_rabbit_steps(delay);
        ck_assert_int_ge((lapse_ns)steps * step, delay);
        ck_assert_int_lt((lapse_ns)steps * step, delay + step);
    }
}
END_TEST

/* P-14: what is longer than the ladder is waited for in turns, none of them longer than the order. */
START_TEST(p14_the_longest_delays_are_waited_for_in_turns)
{
    const lapse_ns step = LAPSE_MS(LP_RABBIT_STEP_MS);
    const lapse_ns top = (lapse_ns)lp_rabbit_steps(LAPSE_DELAY_MAX) * step;
    ck_assert_int_lt(top, LAPSE_DELAY_MAX);
    ck_assert_int_gt(top, LAPSE_DAYS(365 * 17));
    int turns = 0;
    for (lapse_ns left = LAPSE_DELAY_MAX; left > 0; turns++) {
        uint64_t steps = lp_rabbit_steps(left);
        rabbit_route route;
        lp_rabbit_route(&route, steps, "q");
        ck_assert_int_lt(route.level, LP_RABBIT_LEVELS);
        /* RabbitMQ takes no time to live beyond ten years. */
        ck_assert_uint_le((uint64_t)LP_RABBIT_STEP_MS << route.level, UINT64_C(315360000000));
        left -= (lapse_ns)steps * step;
    }
    ck_assert_int_eq(turns, 6);
}
END_TEST

START_TEST(a_key_is_the_delay_in_binary)
{
    rabbit_route route;
    lp_rabbit_route(&route, 6, "close");
    ck_assert_str_eq(route.key, "0.1.1.close");
    ck_assert_int_eq(route.level, 2);
    lp_rabbit_route(&route, 1, "close");
    ck_assert_str_eq(route.key, "1.close");
    lp_rabbit_route(&route, 0, "close");
    ck_assert_str_eq(route.key, "close");
    ck_assert_int_eq(route.level, -1);
}
END_TEST

START_TEST(any_name_is_one_word_of_a_key)
{
    char word[LP_RABBIT_WORD_MAX + 1], other[LP_RABBIT_WORD_MAX + 1];
    char longest[LAPSE_ID_MAX + 1];
    lp_rabbit_word(word, "close_unpaid-2");
    ck_assert_str_eq(word, "close_unpaid-2");
    lp_rabbit_word(word, "a.b*c#\xff");
    ck_assert_str_eq(word, "a%2Eb%2Ac%23%FF");
    lp_rabbit_word(word, "");
    ck_assert_str_eq(word, "%");
    memset(longest, '.', LAPSE_ID_MAX);
    longest[LAPSE_ID_MAX] = '\0';
    lp_rabbit_word(word, longest);
    ck_assert_uint_le(strlen(word), LP_RABBIT_WORD_MAX);
    longest[LAPSE_ID_MAX - 1] = 'x';
    lp_rabbit_word(other, longest);
    ck_assert_str_ne(word, other);
}
END_TEST

/* -- On their way --------------------------------------------------------------------------- */

/* P-66: a long delay holds up no shorter one. */
START_TEST(p66_each_at_its_own_time)
{
    static const int seconds[] = {10, 1, 2, 3, 5};
    place p = new_place(_i, NULL);
    rig r = open_real(&p, NULL);
    player pl;
    player_open(&pl, r.s, NULL);
    handle(r.s, "q", &pl, NULL);
    lapse_ns begin = lapse_now(r.s);
    for (int i = 0; i < 5; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", seconds[i]);
        put(r.s, "q", id, LAPSE_SECONDS(seconds[i]));
    }
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    ck_assert(tape_wait(&pl.ran, 5));
    static const char *const order[] = {"1", "2", "3", "5", "10"};
    for (int i = 0; i < 5; i++) {
        ck_assert_str_eq(pl.ran.entries[i].id, order[i]);
        ck_assert_int_ge(pl.ran.entries[i].now, begin + LAPSE_SECONDS(atoi(order[i])));
        ck_assert(i == 4 || pl.ran.entries[i].now < begin + LAPSE_SECONDS(10));
        printf("rabbitmq: %s s: late by %.1f ms\n", order[i],
               (double)pl.ran.entries[i].late * 1e-6);
    }
    player_close(&pl);
    rig_close(&r);
}
END_TEST

static int by_late(const void *a, const void *b)
{
    const tape_entry *x = a, *y = b;
    return x->late < y->late ? -1 : x->late > y->late;
}

/* P-66: random ones; a thousand up to a minute in `soak`. */
START_TEST(p66_random_delays)
{
    const int orders = (int)tier(40, 40, 1000), most = (int)tier(3, 3, 60);
    place p = new_place(_i, NULL);
    rig r = open_real(&p, NULL);
    player pl;
    player_open(&pl, r.s, NULL);
    handle(r.s, "q", &pl, NULL);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    static lapse_ns due[1000];
    for (int i = 0; i < orders; i++) {
        char id[16];
        snprintf(id, sizeof id, "o%d", i);
        lapse_ns delay = LAPSE_SECONDS(1) + LAPSE_MS(random() % ((most - 1) * 1000));
        due[i] = lapse_now(r.s) + delay;
        put(r.s, "q", id, delay);
    }
    for (int i = 0; i < 120 && tape_count(&pl.ran) < (uint64_t)orders; i++)
        sleep(1); /* sleeps: orders wait in the broker for their time */
    ck_assert_uint_eq(tape_count(&pl.ran), (uint64_t)orders);
    for (int i = 0; i < orders; i++) {
        const tape_entry *e = &pl.ran.entries[i];
        ck_assert_uint_eq(tape_runs(&pl.ran, e->id), 1);
        ck_assert_int_ge(e->now, due[atoi(e->id + 1)]);
    }
    qsort(pl.ran.entries, (size_t)orders, sizeof *pl.ran.entries, by_late);
    printf("rabbitmq: %d orders late by %.1f ms in the middle, %.1f ms at most\n", orders,
           (double)pl.ran.entries[orders / 2].late * 1e-6,
           (double)pl.ran.entries[orders - 1].late * 1e-6);
    player_close(&pl);
    rig_close(&r);
}
END_TEST

/* A delay that comes again and again gets a queue of its own; one that the URL names has it at
 * once. */
START_TEST(a_delay_in_use_has_a_queue_of_its_own)
{
    bench b;
    place p = new_place(_i, "new=2s");
    open_bench(&b, &p);
    for (int i = 0; i < 40; i++)
        ck_assert_int_gt(put_at(&b, "q", "o", LAPSE_MINUTES(30), NULL), 0);
    ck_assert_int_eq(inside(&b)->delays.fixed_count, 1);
    ck_assert_int_eq(inside(&b)->delays.fixed[0], 1800000);
    ck_assert_uint_eq(count(&b, "fix.1800000"), 0); /* It is new, and not used yet. */
    inside(&b)->delays.settles[0] = 0;
    ck_assert_int_gt(put_at(&b, "q", "o", LAPSE_MINUTES(30), NULL), 0);
    ck_assert_uint_eq(count(&b, "fix.1800000"), 1);
    close_bench(&b);
    p = new_place(_i, "fixed=1h,1500ms&new=2s");
    open_bench(&b, &p);
    ck_assert_int_gt(put_at(&b, "q", "o", LAPSE_MS(1500), NULL), 0);
    inside(&b)->delays.settles[1] = 0;
    lapse_ns due = lp_clock_now(NULL) + LAPSE_MS(1500);
    ck_assert_int_gt(put_at(&b, "q", "soon", LAPSE_MS(1500), NULL), 0);
    ck_assert_uint_eq(count(&b, "fix.1500"), 1);
    lp_loan *first = claim(&b, "q");
    ck_assert_str_eq(first->id, "o");
    ck_assert_int_eq(settle_as(&b, first, LP_END), 0);
    free(first);
    lp_loan *l = claim(&b, "q");
    ck_assert_str_eq(l->id, "soon");
    ck_assert_int_ge(lp_clock_now(NULL), due);
    ck_assert_int_eq(settle_as(&b, l, LP_END), 0);
    free(l);
    close_bench(&b);
}
END_TEST

/* A batch for one instant is no setting, nor is what is not whole seconds: such queues would stay for
 * ever, one for each batch. */
START_TEST(a_batch_has_no_queue_of_its_own)
{
    enum { BATCH = 200 };
    bench b;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    static lp_job jobs[BATCH];
    lp_job *list[BATCH];
    lp_turn t = {
        .now = lp_clock_now(NULL), .wall = lp_clock_wall(NULL), .lease = LAPSE_SECONDS(30)};
    for (int i = 0; i < BATCH; i++) {
        jobs[i] = (lp_job){.op = LP_SCHEDULE,
                           .id = "o",
                           .id_len = 1,
                           .queue = "q",
                           .due = t.now + LAPSE_MINUTES(30)};
        list[i] = &jobs[i];
    }
    t.jobs = list;
    t.job_count = BATCH;
    ck_assert_int_eq(lp_rabbitmq_store.turn(b.d, &t), 0);
    for (int i = 0; i < BATCH; i++)
        ck_assert_int_gt(jobs[i].answer, 0);
    for (int i = 0; i < 40; i++)
        ck_assert_int_gt(put_at(&b, "q", "o", LAPSE_MS(1800300), NULL), 0);
    ck_assert_int_eq(inside(&b)->delays.fixed_count, 0);
    close_bench(&b);
}
END_TEST

/* What the ladder holds is where its highest bit is, with its true time. */
START_TEST(p14_a_far_order_is_parked)
{
    static const int days[] = {24, 26, 49, 51, 400};
    bench b;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    for (int i = 0; i < 5; i++) {
        char level[16];
        lapse_ns delay = LAPSE_DAYS(days[i]);
        ck_assert_int_gt(put_at(&b, "q", "far", delay, NULL), 0);
        rabbit_route route;
        lp_rabbit_route(&route, lp_rabbit_steps(delay), "q");
        snprintf(level, sizeof level, "level.%02d", route.level);
        ck_assert_uint_ge(count(&b, level), 1);
    }
    ck_assert_uint_eq(count(&b, "work.q"), 0);
    close_bench(&b);
}
END_TEST

/* One that comes too early, as from a ladder that is shorter than its delay, is put back; or kept, if
 * that is by a moment only: the broker's clock is not ours. */
START_TEST(what_comes_early_is_not_started)
{
    static const int early[] = {1200, 240, 200, 100, 30}; /* ms */
    bench b;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    rabbit_store *d = inside(&b);
    lp_want w = {.queues = (const char *const[]){"q"}, .queue_count = 1, .most = 1};
    lp_loan *l;
    char work[LP_RABBIT_NAME_MAX + 1];
    lp_rabbit_name(work, d->settings.prefix, "work.q");
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(run(&b, NULL, &w, &l), 0);
        ck_assert_ptr_null(l);
        lapse_ns due = lp_clock_wall(NULL) + LAPSE_MS(early[i]);
        rabbit_order o = {
            .id = "o", .id_len = 1, .queue = "q", .due = due, .generation = 7, .attempt = 1};
        ck_assert_int_eq(
            lp_rabbit_publish(&d->out, LP_RABBIT_PUBLISH, "", work, &o, ++d->published), 0);
        l = claim(&b, "q");
        ck_assert_int_ge(lp_clock_wall(NULL), due);
        ck_assert_int_eq(l->generation, 7);
        ck_assert_int_eq(l->attempt, 2);
        ck_assert_int_eq(settle_as(&b, l, LP_END), 0);
        free(l);
    }
    close_bench(&b);
}
END_TEST

/* -- Refused ------------------------------------------------------------------------------------ */

/* Without a queue it comes back, and the next try finds all declared anew. */
START_TEST(what_has_no_queue_is_said)
{
    bench b;
    char *detail;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    ck_assert_int_gt(put_at(&b, "q", "a", 0, NULL), 0);
    delete_queue(&b, "work.q");
    ck_assert_int_eq(put_at(&b, "q", "b", 0, &detail), LAPSE_ESYSTEM);
    ck_assert_ptr_nonnull(strstr(detail, "no queue"));
    free(detail);
    ck_assert_int_gt(put_at(&b, "q", "c", 0, NULL), 0);
    lp_loan *l = claim(&b, "q");
    ck_assert_str_eq(l->id, "c");
    ck_assert_int_eq(settle_as(&b, l, LP_END), 0);
    free(l);
    close_bench(&b);
}
END_TEST

/* Falls due for a queue that was deleted meanwhile: kept aside, told at the next opening, and there
 * again when the queue is. */
START_TEST(what_is_unrouted_is_kept_and_comes_back)
{
    bench b;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    ck_assert_int_gt(put_at(&b, "q", "a", LAPSE_SECONDS(3), NULL), 0);
    delete_queue(&b, "work.q");
    for (int i = 0; i < 2000 && count(&b, "unrouted") == 0; i++)
        usleep(10000); /* sleeps: until the broker has tried */
    ck_assert_uint_eq(count(&b, "unrouted"), 1);
    ck_assert_ptr_null(lp_rabbitmq_store.warning(b.d, 0));
    close_bench(&b);
    open_bench(&b, &p);
    ck_assert_ptr_nonnull(strstr(lp_rabbitmq_store.warning(b.d, 0), "1 orders stand in"));
    ck_assert_int_gt(put_at(&b, "another", "b", 0, NULL), 0);
    ck_assert_int_eq(run(&b, NULL, NULL, NULL), 0);
    for (int i = 0; i < 1000 && count(&b, "unrouted") == 0; i++)
        usleep(10000);                           /* sleeps: what was looked at goes back */
    ck_assert_uint_eq(count(&b, "unrouted"), 1); /* It is for somebody else. */
    lp_loan *l = claim(&b, "q");
    ck_assert_str_eq(l->id, "a");
    ck_assert_int_eq(l->attempt, 1);
    ck_assert_int_eq(settle_as(&b, l, LP_END), 0);
    free(l);
    ck_assert_uint_eq(count(&b, "unrouted"), 0);
    close_bench(&b);
}
END_TEST

/* Somebody has deleted the queue of dead letters: it is empty, and there again when it is needed. */
START_TEST(the_dead_letters_may_be_deleted)
{
    bench b;
    lapse_info infos[8] = {{.id = NULL}};
    uint64_t cursor = 0;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    ck_assert_int_gt(put_at(&b, "q", "a", 0, NULL), 0);
    lp_loan *l = claim(&b, "q");
    delete_queue(&b, "dead");
    lp_job die = {.op = LP_DIE, .fence = l->fence, .reason = LAPSE_REASON_REJECTED};
    ck_assert_int_eq(ask(&b, &die), LAPSE_ESYSTEM); /* Which the driver asks again. */
    free(die.detail);
    die.detail = NULL;
    ck_assert_int_eq(ask(&b, &die), 0);
    ck_assert_uint_eq(count(&b, "dead"), 1);
    free(l);
    delete_queue(&b, "dead");
    lp_job j = {
        .op = LP_LIST, .cursor = &cursor, .states = LAPSE_STATE_DEAD, .infos = infos, .max = 8};
    ck_assert_int_eq(ask(&b, &j), 0);
    lp_job purge = {.op = LP_PURGE};
    ck_assert_int_eq(ask(&b, &purge), 0);
    ck_assert_int_gt(put_at(&b, "q", "b", 0, NULL), 0);
    l = claim(&b, "q");
    ck_assert_int_eq(settle_as(&b, l, LP_DIE), 0);
    ck_assert_uint_eq(count(&b, "dead"), 1);
    free(l);
    close_bench(&b);
}
END_TEST

static void delete_exchange(bench *b, const char *what)
{
    char name[LP_RABBIT_NAME_MAX + 1];
    lp_rabbit_name(name, inside(b)->settings.prefix, what);
    amqp_exchange_delete_t m = {.exchange = amqp_cstring_bytes(name)};
    ck_assert_int_eq(lp_rabbit_call(&inside(b)->in, LP_RABBIT_DECLARE, AMQP_EXCHANGE_DELETE_METHOD,
                                    &m, AMQP_EXCHANGE_DELETE_OK_METHOD, 0),
                     0);
}

/* An exchange that is gone costs the call that finds it out, and no other. */
START_TEST(an_exchange_may_be_deleted)
{
    bench b;
    char *detail;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    ck_assert_int_gt(put_at(&b, "q", "a", LAPSE_MS(100), NULL), 0); /* Two steps: level 1. */
    delete_exchange(&b, "level.01");
    ck_assert_int_eq(put_at(&b, "q", "b", LAPSE_MS(100), &detail), LAPSE_EUNSURE);
    ck_assert_ptr_nonnull(strstr(detail, "NOT_FOUND"));
    free(detail);
    ck_assert_int_gt(put_at(&b, "q", "c", LAPSE_MS(100), NULL), 0);
    for (int i = 0; i < 2; i++) {
        lp_loan *l = claim(&b, "q");
        ck_assert_str_ne(l->id, "b");
        ck_assert_int_eq(settle_as(&b, l, LP_END), 0);
        free(l);
    }
    close_bench(&b);
}
END_TEST

static void declare(bench *b, const char *name, amqp_table_entry_t *entries, int n)
{
    amqp_queue_declare_t m = {.queue = amqp_cstring_bytes(name),
                              .durable = 1,
                              .arguments = {.num_entries = n, .entries = entries}};
    int code = lp_rabbit_call(&inside(b)->in, LP_RABBIT_DECLARE, AMQP_QUEUE_DECLARE_METHOD, &m,
                              AMQP_QUEUE_DECLARE_OK_METHOD, 0);
    ck_assert_msg(code == 0, "%s: %s", name, lapse_error_detail());
}

/* A shop's own queue, whose dead letters come to ours. */
static void declare_theirs(bench *b, const char *name, const char *argument, int64_t value)
{
    char dead[LP_RABBIT_NAME_MAX + 1];
    lp_rabbit_name(dead, inside(b)->settings.prefix, "dead");
    const char *texts[][2] = {{"x-dead-letter-exchange", ""},
                              {"x-dead-letter-routing-key", dead},
                              {"x-queue-type", "quorum"}};
    amqp_table_entry_t entries[4];
    for (int i = 0; i < 3; i++) {
        entries[i].key = amqp_cstring_bytes(texts[i][0]);
        entries[i].value.kind = AMQP_FIELD_KIND_UTF8;
        entries[i].value.value.bytes = amqp_cstring_bytes(texts[i][1]);
    }
    if (argument != NULL) {
        entries[3].key = amqp_cstring_bytes(argument);
        entries[3].value.kind = AMQP_FIELD_KIND_I64;
        entries[3].value.value.i64 = value;
    }
    declare(b, name, entries, argument != NULL ? 4 : 3);
}

static void publish_to(bench *b, const char *queue, const char *id)
{
    rabbit_store *d = inside(b);
    rabbit_order o = {.id = id, .id_len = strlen(id), .queue = "q", .due = 1, .generation = 1};
    ck_assert_int_eq(lp_rabbit_publish(&d->out, LP_RABBIT_PUBLISH, "", queue, &o, ++d->published),
                     0);
}

static void await_dead(bench *b, uint64_t wanted)
{
    for (int i = 0; i < 1000 && count(b, "dead") < wanted; i++)
        usleep(10000); /* sleeps: until the broker has moved them */
    ck_assert_uint_eq(count(b, "dead"), wanted);
}

/* Get one on the channel for looks and reject it, or give it back. */
static void refuse_one(bench *b, const char *queue, bool again)
{
    rabbit_store *d = inside(b);
    int code = 0;
    for (int i = 0; i < 500 && code == 0; i++) {
        code = lp_rabbit_get(&d->in, LP_RABBIT_LOOK, queue);
        if (code == 0)
            usleep(5000); /* sleeps: until the broker has moved it */
    }
    ck_assert_int_eq(code, 1);
    rabbit_message *m = d->looked;
    d->looked = m->next;
    amqp_basic_nack_t nack = {.delivery_tag = m->tag, .requeue = again};
    ck_assert_int_eq(lp_rabbit_send(&d->in, LP_RABBIT_LOOK, AMQP_BASIC_NACK_METHOD, &nack), 0);
    lp_rabbit_free_message(m);
}

static amqp_table_entry_t text_entry(const char *name, char *text)
{
    return (amqp_table_entry_t){
        .key = amqp_cstring_bytes(name),
        .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(text)}};
}

/* Any client may write what looks as if the broker had written it, of any size. */
START_TEST(a_death_of_any_size_is_clipped)
{
    enum { LONG = 50000 };
    static char reason[LONG + 1], queue[LONG + 1];
    bench b;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    memset(reason, 'r', LONG);
    memset(queue, '\xff', LONG);
    amqp_table_entry_t death[] = {text_entry("reason", reason), text_entry("queue", queue)};
    amqp_field_value_t deaths = {.kind = AMQP_FIELD_KIND_TABLE, .value.table = {2, death}};
    amqp_table_entry_t header = {
        .key = amqp_cstring_bytes("x-death"),
        .value = {.kind = AMQP_FIELD_KIND_ARRAY, .value.array = {1, &deaths}}};
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_HEADERS_FLAG,
                                          .headers = {1, &header}};
    char dead[LP_RABBIT_NAME_MAX + 1];
    rabbit_store *d = inside(&b);
    lp_rabbit_name(dead, d->settings.prefix, "dead");
    ck_assert_int_eq(amqp_basic_publish(d->out.connection, LP_RABBIT_PUBLISH, amqp_empty_bytes,
                                        amqp_cstring_bytes(dead), 1, 0, &properties,
                                        amqp_empty_bytes),
                     AMQP_STATUS_OK);
    d->published++;
    await_dead(&b, 1);
    lapse_info info = {.id = NULL};
    uint64_t cursor = 0;
    lp_job j = {
        .op = LP_LIST, .cursor = &cursor, .states = LAPSE_STATE_DEAD, .infos = &info, .max = 1};
    ck_assert_int_eq(ask(&b, &j), 1);
    ck_assert_ptr_nonnull(strstr(info.error, "rrrr in \\xff"));
    ck_assert_uint_le(strlen(info.error), 1000);
    lapse_info_free(&info);
    close_bench(&b);
}
END_TEST

/* A look gives back what it has seen, and each time counts: what has been seen often is new again. */
START_TEST(no_number_of_looks_wears_out_a_dead_letter)
{
    enum { ORDERS = 5, LOOKS = 12 };
    bench b;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    for (int i = 0; i < ORDERS; i++) {
        char id[8];
        snprintf(id, sizeof id, "o%d", i);
        ck_assert_int_gt(put_at(&b, "q", id, 0, NULL), 0);
        lp_loan *l = claim(&b, "q");
        ck_assert_int_eq(settle_as(&b, l, LP_DIE), 0);
        free(l);
    }
    for (int look = 0; look < LOOKS; look++) {
        bool seen[ORDERS] = {false};
        uint64_t cursor = 0;
        int n = 0;
        while (cursor != UINT64_MAX) {
            lapse_info infos[2] = {{.id = NULL}};
            lp_job j = {.op = LP_LIST,
                        .cursor = &cursor,
                        .states = LAPSE_STATE_DEAD,
                        .infos = infos,
                        .max = 2};
            int64_t found = ask(&b, &j);
            for (int64_t i = 0; i < found; i++, n++) {
                ck_assert_str_eq(infos[i].error, "no such order");
                ck_assert_int_eq(infos[i].reason, LAPSE_REASON_REJECTED);
                ck_assert_int_eq(infos[i].attempt, 1);
                seen[atoi(infos[i].id + 1)] = true;
                lapse_info_free(&infos[i]);
            }
        }
        ck_assert_int_eq(n, ORDERS);
        for (int i = 0; i < ORDERS; i++)
            ck_assert(seen[i]);
        lp_job purge = {.op = LP_PURGE, .id = "nobody", .id_len = 6}; /* Looks too. */
        ck_assert_int_eq(ask(&b, &purge), 0);
        rabbit_message *m;
        char dead[LP_RABBIT_NAME_MAX + 1];
        lp_rabbit_name(dead, inside(&b)->settings.prefix, "dead");
        await_dead(&b, ORDERS);
        ck_assert_int_eq(lp_rabbit_look(inside(&b), dead, &m), 1);
        ck_assert_int_le(m->redeliveries, 3);
        ck_assert_int_eq(lp_rabbit_requeue(&inside(&b)->in, LP_RABBIT_LOOK, m->tag, false), 0);
        lp_rabbit_free_message(m);
        await_dead(&b, ORDERS);
    }
    lp_job purge = {.op = LP_PURGE, .id = "o3", .id_len = 2};
    ck_assert_int_eq(ask(&b, &purge), 1);
    close_bench(&b);
}
END_TEST

static const char *const given_up[] = {"rejected", "expired", "maxlen", "delivery_limit"};

/* Queues of a shop's, each of which gives up an order for one of the broker's reasons: its id. */
static void have_given_up(bench *b, char names[4][128])
{
    const char *prefix = inside(b)->settings.prefix;
    for (int i = 0; i < 4; i++)
        snprintf(names[i], 128, "%s.theirs.%s", prefix, given_up[i]);
    declare_theirs(b, names[0], NULL, 0);
    declare_theirs(b, names[1], "x-message-ttl", 10);
    declare_theirs(b, names[2], "x-max-length", 1);
    declare_theirs(b, names[3], "x-delivery-limit", 1);
    for (int i = 0; i < 4; i++)
        publish_to(b, names[i], given_up[i]);
    publish_to(b, names[2], "next"); /* The first gives way. */
    refuse_one(b, names[0], false);
    refuse_one(b, names[3], true);
    refuse_one(b, names[3], true);
    await_dead(b, 4);
}

/* The broker's own reasons, as any queue that dead-letters to ours brings them; and ours. */
START_TEST(dead_letters_say_why)
{
    static const lapse_reason reasons[] = {LAPSE_REASON_REJECTED, LAPSE_REASON_EXPIRED,
                                           LAPSE_REASON_MAXLEN, LAPSE_REASON_LOST};
    bench b;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    char names[4][128];
    have_given_up(&b, names);
    lapse_info infos[8] = {{.id = NULL}};
    uint64_t cursor = 0;
    lp_job j = {
        .op = LP_LIST, .cursor = &cursor, .states = LAPSE_STATE_DEAD, .infos = infos, .max = 8};
    ck_assert_int_eq(ask(&b, &j), 4);
    for (int i = 0; i < 4; i++) {
        int k = 0;
        while (k < 4 && strcmp(infos[i].id, given_up[k]) != 0)
            k++;
        ck_assert_int_lt(k, 4);
        ck_assert_int_eq(infos[i].reason, reasons[k]);
        ck_assert_ptr_nonnull(strstr(infos[i].error, given_up[k]));
        ck_assert_ptr_nonnull(strstr(infos[i].error, names[k]));
        lapse_info_free(&infos[i]);
    }
    lp_job again = {.op = LP_REQUEUE, .id = "maxlen", .id_len = 6, .due = lp_clock_now(NULL)};
    ck_assert_int_gt(ask(&b, &again), 1);
    lp_loan *l = claim(&b, "q");
    ck_assert_str_eq(l->id, "maxlen");
    ck_assert_int_eq(l->attempt, 1);
    ck_assert_int_eq(settle_as(&b, l, LP_DIE), 0);
    free(l);
    lp_job purge = {.op = LP_PURGE, .id = "expired", .id_len = 7};
    ck_assert_int_eq(ask(&b, &purge), 1);
    await_dead(&b, 3); /* What it has looked at is on its way back. */
    close_bench(&b);
}
END_TEST

/* Whoever gave an order up, and for whatever reason, it is requeued like any other. */
START_TEST(each_dead_letter_is_requeued)
{
    static const lapse_reason ours[] = {LAPSE_REASON_FAILED, LAPSE_REASON_REJECTED,
                                        LAPSE_REASON_EXPIRED, LAPSE_REASON_LOST};
    static const char *const ids[] = {"we-failed", "we-rejected", "we-expired", "we-lost"};
    bench b;
    char names[4][128];
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    have_given_up(&b, names);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_gt(put_at(&b, "q", ids[i], 0, NULL), 0);
        lp_loan *l = claim(&b, "q");
        lp_job die = {.op = LP_DIE, .fence = l->fence, .reason = ours[i], .counted = true};
        ck_assert_int_eq(ask(&b, &die), 0);
        free(l);
    }
    await_dead(&b, 8);
    for (int i = 0; i < 8; i++) {
        const char *id = i < 4 ? given_up[i] : ids[i - 4];
        lp_job again = {
            .op = LP_REQUEUE, .id = id, .id_len = strlen(id), .due = lp_clock_now(NULL)};
        ck_assert_msg(ask(&b, &again) > 0, "%s: %s", id, again.detail);
        lp_loan *l = claim(&b, "q");
        ck_assert_str_eq(l->id, id);
        ck_assert_int_eq(l->attempt, 1);
        ck_assert_int_eq(settle_as(&b, l, LP_END), 0);
        free(l);
        ck_assert_int_eq(ask(&b, &again), LAPSE_EUNKNOWN);
        free(again.detail);
    }
    await_dead(&b, 0);
    close_bench(&b);
}
END_TEST

/* A queue at its limit refuses: full. */
START_TEST(a_full_queue_is_said)
{
    bench b;
    char *detail = NULL;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    rabbit_queue *q = lp_rabbit_queue(inside(&b), "q");
    amqp_table_entry_t entries[3] = {
        {.key = amqp_cstring_bytes("x-queue-type"),
         .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes("quorum")}},
        {.key = amqp_cstring_bytes("x-overflow"),
         .value = {.kind = AMQP_FIELD_KIND_UTF8,
                   .value.bytes = amqp_cstring_bytes("reject-publish")}},
        {.key = amqp_cstring_bytes("x-max-length"),
         .value = {.kind = AMQP_FIELD_KIND_I64, .value.i64 = 2}}};
    declare(&b, q->work, entries, 3);
    q->is_declared = true; /* As a policy of the broker's would have it. */
    int64_t answer = 1;
    for (int i = 0; i < 200 && answer > 0; i++)
        answer = put_at(&b, "q", "more", 0, &detail);
    ck_assert_int_eq(answer, LAPSE_EFULL);
    ck_assert_ptr_nonnull(strstr(detail, "limit"));
    free(detail);
    close_bench(&b);
}
END_TEST

/* -- Lost connections ---------------------------------------------------------------------- */

/* P-59: who held an order when the connection went holds it no more, and another has it. */
START_TEST(p59_a_lost_connection_loses_what_was_held)
{
    bench b, other;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    open_bench(&other, &p);
    ck_assert_int_gt(put_at(&b, "q", "o", 0, NULL), 0);
    lp_loan *l = claim(&b, "q");
    lp_job holds = {.op = LP_HOLDS, .fence = l->fence};
    ck_assert_int_eq(ask(&b, &holds), 1);
    close(inside(&b)->in.fd); /* The broker sees its end. */
    lp_loan *second = claim(&other, "q");
    ck_assert_str_eq(second->id, "o");
    ck_assert_int_eq(second->attempt, 2);
    ck_assert_int_gt(second->fence, l->fence);
    lp_job end = {.op = LP_END, .fence = l->fence};
    int code = run(&b, &end, NULL, NULL);
    ck_assert(code == 0 ? end.answer == LAPSE_ESTALE : code == LAPSE_EOFFLINE);
    ck_assert_int_eq(ask(&b, &holds), 0);
    ck_assert_int_eq(settle_as(&other, second, LP_END), 0);
    free(l);
    free(second);
    close_bench(&other);
    close_bench(&b);
}
END_TEST

/* What was sent to a scheduler that closes, and that it had not even read, has been tried by nobody. */
START_TEST(what_is_sent_to_who_closes_counts_for_nothing)
{
    bench b, other;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    open_bench(&other, &p);
    lp_want w = {.queues = (const char *const[]){"q"}, .queue_count = 1, .most = 1};
    lp_loan *l;
    ck_assert_int_eq(run(&b, NULL, &w, &l), 0);
    ck_assert_ptr_null(l);
    ck_assert_int_gt(put_at(&other, "q", "o", 0, NULL), 0);
    for (int i = 0; i < 1000 && count(&other, "work.q") > 0; i++)
        usleep(10000); /* sleeps: until the broker has sent it */
    ck_assert_uint_eq(count(&other, "work.q"), 0);
    close_bench(&b);
    l = claim(&other, "q");
    ck_assert_str_eq(l->id, "o");
    ck_assert_int_eq(l->attempt, 1);
    ck_assert_int_eq(settle_as(&other, l, LP_END), 0);
    free(l);
    close_bench(&other);
}
END_TEST

/* The broker goes on with a connection that is lost on our side only: its mailbox is still in use. */
START_TEST(a_waker_does_not_wait_for_its_old_mailbox)
{
    place p = new_place(_i, NULL);
    lp_store_config config = {.url = p.url};
    rabbit_settings settings;
    rabbit_waker w = {.bound = NULL};
    ck_assert_int_eq(lp_rabbit_read_url(&config, &settings), 0);
    ck_assert_int_eq(lp_rabbit_open_waker(&w, &settings), 0);
    ck_assert(lp_rabbit_can_wake(&w));
    rabbit_link old = w.in;
    w.in = (rabbit_link){.fd = -1, .watch = -1};
    int code = lp_rabbit_keep_waker(&w);
    ck_assert_msg(code == 0, "%s", lapse_error_detail());
    ck_assert(lp_rabbit_can_wake(&w));
    lp_rabbit_disconnect(&old, false);
    lp_rabbit_close_waker(&w);
}
END_TEST

/* P-62: while the broker is gone calls say so, and afterwards all that was promised comes. */
START_TEST(p62_a_broker_that_comes_back)
{
    place p = new_place(_i, "new=2s");
    rig r = open_real(&p, NULL);
    player pl;
    player_open(&pl, r.s, NULL);
    handle(r.s, "q", &pl, NULL);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    put_batch(r.s, "q", "first", 1, 0);
    put_batch(r.s, "q", "far", 1, LAPSE_SECONDS(20));
    lapse_ns begin = lapse_now(r.s);
    put_batch(r.s, "q", "o", 50, LAPSE_SECONDS(2));
    put_batch(r.s, "q", "later", 50, LAPSE_SECONDS(8));
    server_do("rabbitmq", "kill", NULL, 0);
    int64_t answer = lapse_put(r.s, &(lapse_spec){.id = "x", .queue = "q"});
    ck_assert_msg(answer == LAPSE_EOFFLINE || answer == LAPSE_EUNSURE, "%lld %s", (long long)answer,
                  lapse_error_detail());
    server_do("rabbitmq", "start", NULL, 0);
    for (int i = 0; i < 60 && tape_count(&pl.ran) < 102; i++)
        sleep(1); /* sleeps: the broker comes up */
    ck_assert_uint_ge(tape_count(&pl.ran), 102);
    for (uint64_t i = 0; i < tape_count(&pl.ran); i++) {
        const tape_entry *e = &pl.ran.entries[i];
        if (e->id[0] == 'l' || e->id[0] == 'o')
            ck_assert_int_ge(e->now, begin + LAPSE_SECONDS(e->id[0] == 'l' ? 8 : 2));
    }
    ck_assert_int_eq(stats_of(r.s).offline, 0);
    player_close(&pl);
    rig_close(&r);
}
END_TEST

/* What was answered is there after a kill, though every queue was new and another is new to whoever
 * comes next; what cannot be known is said. */
START_TEST(p62_the_first_orders_survive_a_kill)
{
    place p = new_place(_i, "new=2s");
    rig r = open_real(&p, NULL), other = open_real(&p, NULL);
    lapse_ns begin = lapse_now(r.s);
    int64_t first =
        lapse_put(r.s, &(lapse_spec){.id = "first", .queue = "q", .delay = LAPSE_SECONDS(20)});
    ck_assert_msg(first > 0, "%s", lapse_error_detail());
    ck_assert_int_ge(lapse_now(r.s), begin + LAPSE_SECONDS(2));
    server_do("rabbitmq", "kill", NULL, 0);
    ck_assert_int_lt(lapse_now(r.s), begin + LAPSE_SECONDS(20));
    server_do("rabbitmq", "start", NULL, 0);
    player pl;
    player_open(&pl, other.s, NULL);
    handle(other.s, "q", &pl, NULL);
    ck_assert_int_eq(lapse_start(other.s, 1), 0);
    for (int i = 0; i < 60 && tape_count(&pl.ran) < 1; i++)
        sleep(1); /* sleeps: the broker comes up, and the order falls due */
    ck_assert_uint_eq(tape_count(&pl.ran), 1);
    ck_assert_str_eq(pl.ran.entries[0].id, "first");
    ck_assert_int_ge(pl.ran.entries[0].now, begin + LAPSE_SECONDS(20));
    player_close(&pl);
    rig_close(&other);
    rig_close(&r);
}
END_TEST

/* Until what takes its place has settled, a message is not acknowledged. */
START_TEST(what_goes_by_a_new_queue_is_kept_meanwhile)
{
    bench b, other;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    ck_assert_int_gt(put_at(&b, "q", "o", 0, NULL), 0);
    add_option(&p, "new=20s");
    open_bench(&other, &p);
    lp_loan *l = claim(&other, "q");
    lp_job again = {.op = LP_AGAIN,
                    .fence = l->fence,
                    .due = lp_clock_now(NULL) + LAPSE_HOURS(1),
                    .at = lp_clock_now(NULL) + LAPSE_HOURS(1)};
    ck_assert_int_eq(ask(&other, &again), 0);
    ck_assert_int_eq(settle_as(&other, l, LP_END), LAPSE_ESTALE);
    ck_assert_ptr_nonnull(inside(&other)->replaced);
    lp_rabbit_close_links(inside(&other), false);
    free(l);
    l = claim(&b, "q"); /* The broker has kept it. */
    ck_assert_str_eq(l->id, "o");
    ck_assert_int_eq(settle_as(&b, l, LP_END), 0);
    free(l);
    close_bench(&other);
    close_bench(&b);
}
END_TEST

/* A schedule that depends on a new queue is answered later, and others at once. */
START_TEST(others_do_not_wait_for_what_is_new)
{
    bench b;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    ck_assert_int_gt(put_at(&b, "old", "a", 0, NULL), 0);
    close_bench(&b);
    add_option(&p, "new=20s");
    open_bench(&b, &p);
    lp_job j = {.op = LP_SCHEDULE, .id = "b", .id_len = 1, .queue = "new"};
    lp_job other = {.op = LP_SCHEDULE, .id = "c", .id_len = 1, .queue = "old"};
    (void)ask(&b, &other);
    ck_assert(!other.later);
    ck_assert_int_gt(other.answer, 0);
    (void)ask(&b, &j);
    ck_assert(j.later);
    ck_assert_int_gt(j.later_at, lp_clock_monotonic());
    int64_t generation = j.answer;
    ck_assert_int_eq(ask(&b, &j), generation); /* The time is over: the driver asks. */
    ck_assert(!j.later);
    ck_assert_uint_eq(count(&b, "work.new"), 1);
    j.later = false;
    lp_rabbit_close_links(inside(&b), false);
    ck_assert_int_eq(ask(&b, &j), LAPSE_EUNSURE);
    free(j.detail);
    close_bench(&b);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "routes");
    tcase_add_test(group, a_delay_is_rounded_up);
    tcase_add_test(group, p14_the_longest_delays_are_waited_for_in_turns);
    tcase_add_test(group, a_key_is_the_delay_in_binary);
    tcase_add_test(group, any_name_is_one_word_of_a_key);
    group = add_group(suite, "on their way");
    ADD_FOR_STORES(group, p66_each_at_its_own_time);
    ADD_FOR_STORES(group, p66_random_delays);
    ADD_FOR_STORES(group, a_delay_in_use_has_a_queue_of_its_own);
    ADD_FOR_STORES(group, a_batch_has_no_queue_of_its_own);
    ADD_FOR_STORES(group, p14_a_far_order_is_parked);
    ADD_FOR_STORES(group, what_comes_early_is_not_started);
    group = add_group(suite, "refused, dead");
    ADD_FOR_STORES(group, what_has_no_queue_is_said);
    ADD_FOR_STORES(group, what_is_unrouted_is_kept_and_comes_back);
    ADD_FOR_STORES(group, the_dead_letters_may_be_deleted);
    ADD_FOR_STORES(group, an_exchange_may_be_deleted);
    ADD_FOR_STORES(group, dead_letters_say_why);
    ADD_FOR_STORES(group, each_dead_letter_is_requeued);
    ADD_FOR_STORES(group, a_death_of_any_size_is_clipped);
    ADD_FOR_STORES(group, no_number_of_looks_wears_out_a_dead_letter);
    ADD_FOR_STORES(group, a_full_queue_is_said);
    group = add_group(suite, "lost connections");
    ADD_FOR_STORES(group, p59_a_lost_connection_loses_what_was_held);
    ADD_FOR_STORES(group, what_is_sent_to_who_closes_counts_for_nothing);
    ADD_FOR_STORES(group, a_waker_does_not_wait_for_its_old_mailbox);
    ADD_FOR_STORES(group, p62_a_broker_that_comes_back);
    group = add_group(suite, "new queues");
    ADD_FOR_STORES(group, others_do_not_wait_for_what_is_new);
    ADD_FOR_STORES(group, what_goes_by_a_new_queue_is_kept_meanwhile);
    ADD_FOR_STORES(group, p62_the_first_orders_survive_a_kill);
}

int main(void)
{
    return stores_main("orders in RabbitMQ", fill_suite);
}
