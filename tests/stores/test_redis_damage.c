/* test_redis_damage.c - the Redis store through its table, while what stands in Redis is damaged:
 * by hand, by another program, by a bug. It is one order's affair, whatever is asked. */
/* servers: redis */
/* tiers: quick full soak */
#include "stores/redis_turns.h"

/* -- One record ------------------------------------------------------------------------------- */

/* What somebody has deleted by hand holds nobody up. */
START_TEST(a_record_that_is_gone_holds_nobody_up)
{
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    schedule(&b, "a", -LAPSE_SECONDS(2));
    schedule(&b, "b", -LAPSE_SECONDS(1));
    ck_assert_int_eq(redis(&p, "HDEL {%.*s}:job %s", "a"), 1);
    lp_loan *l = claim(&b, 2, false, NULL);
    ck_assert_ptr_nonnull(l);
    ck_assert_str_eq(l->id, "b");
    ck_assert_ptr_null(l->next);
    free_loans(l);
    ck_assert_int_eq(redis(&p, "ZCARD {%.*s}:due%s", ""), 0);
    close_bench(&b);
}
END_TEST

/* One that somebody has damaged is told as such, for a dead letter, and holds nobody up. */
START_TEST(a_record_that_is_damaged_holds_nobody_up)
{
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    schedule(&b, "a", -LAPSE_SECONDS(2));
    schedule(&b, "b", -LAPSE_SECONDS(1));
    redis(&p, "HSET {%.*s}:job %s short", "a");
    lp_job look = {.op = LP_CANCEL, .id = "a", .id_len = 1};
    ck_assert_int_eq(ask(&b, &look), LAPSE_FATE_UNKNOWN);
    lp_loan *l = claim(&b, 2, false, NULL);
    ck_assert_ptr_nonnull(l);
    ck_assert_str_eq(l->id, "a");
    ck_assert_str_eq(l->queue, "q");
    ck_assert_ptr_nonnull(l->bad);
    ck_assert_ptr_nonnull(l->next);
    ck_assert_str_eq(l->next->id, "b");
    ck_assert_ptr_null(l->next->bad);
    ck_assert_int_eq(end_claim(&b, l, LP_DIE), 0);
    ck_assert_int_eq(end_claim(&b, l->next, LP_END), 0);
    free_loans(l);
    redis(&p, "HSET {%.*s}:job %s short", "c"); /* Of no order at all. */
    ck_assert_int_gt(schedule(&b, "c", 0), 0);
    l = claim_soon(&b);
    ck_assert_str_eq(l->id, "c");
    ck_assert_ptr_null(l->bad);
    free_loans(l);
    close_bench(&b);
}
END_TEST

/* -- Any bytes in any place --------------------------------------------------------------------- */

/* What stands in a store before it is damaged. Those of queue "sound" are left alone. */
enum { FAR, DUE, AGAIN, HELD, LATE, LEFT, ENDED, DEAD, IDS };

static const char *const ids[IDS] = {
    [FAR] = "far",     [DUE] = "due",   [AGAIN] = "again", /* pending; due; after an attempt */
    [HELD] = "held",   [LATE] = "late", [LEFT] = "left",   /* its lease ended; and cancelled */
    [ENDED] = "ended", [DEAD] = "dead",
};

static const char *what;

typedef struct world {
    place p;
    bench b;
    redisContext *link;
    int64_t fences[IDS];
    lapse_info infos[16 * IDS][4];
    size_t info_count;
    lp_counts counts;
    uint64_t cursors[IDS];
} world;

/* A command with three words behind the name of a key, which may be any bytes. */
static redisReply *command(world *w, const char *verb, const char *key, const char *a, size_t a_len,
                           const char *b, size_t b_len)
{
    const char *prefix = strstr(w->p.url, "prefix=") + 7;
    char name[200];
    snprintf(name, sizeof name, "{%.*s}:%s", (int)strcspn(prefix, "&"), prefix, key);
    const char *argv[] = {verb, name, a, b};
    size_t lens[] = {strlen(verb), strlen(name), a_len, b_len};
    redisReply *r = redisCommandArgv(w->link, b ? 4 : a ? 3 : 2, argv, lens);
    ck_assert_msg(r && r->type != REDIS_REPLY_ERROR, "%s %s: %s", verb, name,
                  r ? r->str : w->link->errstr);
    return r;
}

static void do_command(world *w, const char *verb, const char *key, const char *a, size_t a_len,
                       const char *b, size_t b_len)
{
    freeReplyObject(command(w, verb, key, a, a_len, b, b_len));
}

static void hold(world *w, int i, lapse_ns lease)
{
    ck_assert_int_gt(schedule(&w->b, ids[i], -LAPSE_SECONDS(9)), 0);
    w->b.lease = lease;
    lp_loan *l = claim(&w->b, 1, false, NULL);
    w->b.lease = LEASE;
    lp_loan *held = l;
    while (held && held->ended) /* LEFT, by now */
        held = held->next;
    ck_assert_ptr_nonnull(held);
    ck_assert_str_eq(held->id, ids[i]);
    w->fences[i] = held->fence;
    free_loans(l);
}

static int64_t do_one(world *w, int i, int op)
{
    lp_job j = {.op = op,
                .id = ids[i],
                .id_len = strlen(ids[i]),
                .fence = w->fences[i],
                .due = now_of(&w->b) - LAPSE_SECONDS(1),
                .at = now_of(&w->b) - LAPSE_SECONDS(1),
                .counted = true,
                .reason = LAPSE_REASON_FAILED};
    return ask(&w->b, &j);
}

static void make_world(world *w, int i)
{
    memset(w, 0, sizeof *w);
    unsigned port = 0;
    w->p = new_place(i, NULL);
    ck_assert_int_eq(sscanf(strstr(w->p.url, "127.0.0.1:"), "127.0.0.1:%u", &port), 1);
    w->link = redisConnect("127.0.0.1", (int)port);
    ck_assert(w->link && !w->link->err);
    w->b = open_bench(&w->p, "keep=1h&max_pending=1000&overflow=dead_letter_oldest", 0);
    hold(w, ENDED, LEASE);
    ck_assert_int_eq(do_one(w, ENDED, LP_END), 0);
    hold(w, DEAD, LEASE);
    ck_assert_int_eq(do_one(w, DEAD, LP_DIE), 0);
    hold(w, HELD, LEASE);
    hold(w, AGAIN, LEASE);
    hold(w, LEFT, LAPSE_MS(30));
    (void)do_one(w, LEFT, LP_CANCEL); /* On a slow machine its lease has ended already. */
    hold(w, LATE, LAPSE_MS(1));
    ck_assert_int_eq(do_one(w, AGAIN, LP_AGAIN), 0);
    ck_assert_int_gt(schedule(&w->b, ids[FAR], LAPSE_HOURS(1)), 0);
    ck_assert_int_gt(schedule(&w->b, ids[DUE], -LAPSE_SECONDS(2)), 0);
    lp_job j = schedule_job(&w->b, "sound", -LAPSE_SECONDS(1));
    j.queue = "sound";
    ck_assert_int_gt(ask(&w->b, &j), 0);
}

static void free_world(world *w)
{
    close_bench(&w->b);
    redisFree(w->link);
}

/* -- Damages -- */

typedef struct damage {
    const char *key;
    const char *bytes; /* for each field of a hash; NULL: members are put into a sorted set */
    size_t len;
} damage;

#define FF "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
#define ZERO "\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define BYTES(text) text, sizeof(text) - 1
#define HASH(key)                                                                                  \
    {key, BYTES("")}, {key, BYTES("short")}, {key, BYTES(FF)}, {key, BYTES("D" FF)},               \
        {key, BYTES("E" FF FF "\xff\xff\xff")}, {key, BYTES(FF FF FF)},                            \
        {key, BYTES(ZERO ZERO ZERO)}, {key, BYTES(FF FF FF FF FF)},                                \
    {                                                                                              \
        key, BYTES(ZERO ZERO ZERO ZERO ZERO)                                                       \
    }

static const damage damages[] = {
    HASH("job"),
    HASH("state"),
    HASH("past"),
    HASH("dead"),
    {"queues", BYTES("")},
    {"queues", BYTES("nan")},
    {"queues", BYTES("1e300")},
    {"meta", BYTES("")},
    {"meta", BYTES("nan")},
    {"meta", BYTES("1e300")},
    {"meta", BYTES("-1")},
    {.key = "due"},
    {.key = "run"},
    {.key = "over"},
    {.key = "ended"},
    {.key = "deaths"},
    {.key = "deadids"},
    {.key = "age"},
    {.key = "next"},
};
enum { DAMAGES = sizeof damages / sizeof *damages };

/* What says which store it is is no order's. */
static bool is_left_alone(const char *key, const redisReply *field)
{
    static const char *const kept[] = {"id", "v", "aged", "queue:"};
    if (strcmp(field->str, "sound") == 0)
        return true;
    for (size_t i = 0; strcmp(key, "meta") == 0 && i < sizeof kept / sizeof *kept; i++)
        if (strncmp(field->str, kept[i], strlen(kept[i])) == 0)
            return true;
    return false;
}

static void damage_hash(world *w, const damage *d)
{
    redisReply *fields = command(w, "HKEYS", d->key, NULL, 0, NULL, 0);
    for (size_t i = 0; i < fields->elements; i++)
        if (!is_left_alone(d->key, fields->element[i]))
            do_command(w, "HSET", d->key, fields->element[i]->str, fields->element[i]->len,
                       d->bytes, d->len);
    freeReplyObject(fields);
}

/* Of any length, at the ends of the set and where queue "q" has its own. */
static void damage_set(world *w, const char *key)
{
    static const damage members[] = {{.bytes = ""},
                                     {.bytes = "x", .len = 1},
                                     {.bytes = "nan", .len = 3},
                                     {NULL, BYTES("abcdefghij")},
                                     {NULL, BYTES(FF FF)},
                                     {NULL, BYTES(ZERO ZERO)}};
    static const char *const scores[] = {"inf", "-inf", "0", "-1.5", NULL, NULL};
    redisReply *first = command(w, "ZRANGE", "due", "0", 1, "0", 1);
    redisReply *score =
        command(w, "ZSCORE", "due", first->element[0]->str, first->element[0]->len, NULL, 0);
    for (size_t i = 0; i < 6; i++)
        for (size_t j = 0; j < 6; j++) {
            char member[64];
            size_t len = members[j].len;
            memcpy(member, members[j].bytes, len);
            if (i > 0) /* Another one in each place. */
                member[len++] = (char)('0' + i);
            const char *at = scores[i] ? scores[i] : score->str;
            do_command(w, "ZADD", key, at, strlen(at), member, len);
        }
    freeReplyObject(first);
    freeReplyObject(score);
}

/* -- What is asked -- */

static const int asked[] = {LP_SCHEDULE, LP_CANCEL, LP_RESCHEDULE, LP_GET,   LP_REQUEUE,
                            LP_PURGE,    LP_END,    LP_AGAIN,      LP_DIE,   LP_RENEW,
                            LP_HOLDS,    LP_LIST,   LP_COUNT,      LP_QUEUES};
enum { ASKED = sizeof asked / sizeof *asked };

static lp_job make_job(world *w, int op, int i, bool variant)
{
    bool has_infos = op == LP_GET || op == LP_LIST || op == LP_QUEUES || variant;
    return (lp_job){.op = op,
                    .id = ids[i],
                    .id_len = strlen(ids[i]),
                    .queue = op == LP_COUNT && variant ? NULL : "q",
                    .replace = variant,
                    .due = now_of(&w->b) + LAPSE_HOURS(1),
                    .at = now_of(&w->b) + LAPSE_HOURS(1),
                    .fence = w->fences[i],
                    .lease = LEASE,
                    .reason = LAPSE_REASON_FAILED,
                    .cursor = &w->cursors[i],
                    .states = 15,
                    .infos = has_infos ? w->infos[w->info_count++ % (16 * IDS)] : NULL,
                    .max = op == LP_LIST || op == LP_QUEUES ? 4 : 1,
                    .counts = &w->counts};
}

static void free_infos(lp_job *j)
{
    bool many = j->op == LP_LIST || j->op == LP_QUEUES;
    int64_t n = many              ? j->answer
                : j->op == LP_GET ? j->answer == 0
                                  : j->died && j->infos && j->infos->id;
    for (int64_t i = 0; i < n; i++)
        lapse_info_free(&j->infos[i]);
}

/* Everything at once, of each order: what is asked `first` finds the damage as it was. The turn
 * succeeds, and what is sound in it is done. Of which order something was claimed is noted. */
static void ask_all(world *w, size_t first, size_t count, bool variant, bool *claimed)
{
    static const char *const queues[] = {"q", "sound"};
    lp_job jobs[ASKED * IDS + 1], *list[ASKED * IDS + 1];
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        for (int id = 0; id < IDS; id++)
            jobs[n++] = make_job(w, asked[(first + i) % ASKED], id, variant);
    jobs[n] = schedule_job(&w->b, "new", -LAPSE_MS(500));
    jobs[n].queue = "sound";
    for (size_t i = 0; i <= n; i++)
        list[i] = &jobs[i];
    lp_want wants[] = {{.queues = queues, .queue_count = 2, .most = 50},
                       {.others = true, .most = 50}};
    lp_loan *loans;
    int code = run_turn(&w->b, list, n + 1, wants, 2, &loans);
    ck_assert_msg(code == 0, "%s: turn: %d %s", what, code, lapse_error_detail());
    ck_assert_msg(jobs[n].answer > 0, "%s: %s", what, jobs[n].detail ? jobs[n].detail : "");
    for (size_t i = 0; i <= n; i++) {
        free_infos(&jobs[i]);
        forget(&jobs[i]);
    }
    int sound = 0;
    for (lp_loan *l = loans; l; l = l->next) {
        for (int i = 0; i < IDS; i++)
            claimed[i] = claimed[i] || strcmp(l->id, ids[i]) == 0;
        if (l->ended)
            continue;
        bool is_sound = strcmp(l->queue, "sound") == 0;
        ck_assert_msg(!is_sound || !l->bad, "%s: %s: %s", what, l->id, l->bad);
        ck_assert_int_eq(end_claim(&w->b, l, l->bad ? LP_DIE : LP_END), 0);
        sound += is_sound;
    }
    ck_assert_int_eq(sound, 2);
    free_loans(loans);
}

/* The store goes on: a walk ends, all ids are free again, and it can be emptied. */
static void go_on(world *w)
{
    for (int steps = 0; w->cursors[0] != UINT64_MAX; steps++) {
        lp_job j = make_job(w, LP_LIST, 0, false);
        ck_assert_int_ge(ask(&w->b, &j), 0);
        free_infos(&j);
        ck_assert_int_lt(steps, 200);
    }
    for (int i = 0; i < IDS; i++) {
        lp_job j = make_job(w, LP_SCHEDULE, i, true);
        j.queue = "sound";
        j.infos = NULL;
        j.due = now_of(&w->b) - LAPSE_SECONDS(1);
        ck_assert_int_gt(ask(&w->b, &j), 0);
    }
    static const char *const queues[] = {"sound"};
    lp_want want = {.queues = queues, .queue_count = 1, .most = 50};
    lp_loan *loans;
    ck_assert_int_eq(run_turn(&w->b, NULL, 0, &want, 1, &loans), 0);
    size_t n = 0;
    for (lp_loan *l = loans; l; l = l->next, n++)
        ck_assert_msg(!l->bad, "%s: %s", l->id, l->bad);
    ck_assert_uint_eq(n, IDS);
    free_loans(loans);
    lp_job purge = {.op = LP_PURGE};
    ck_assert_int_ge(ask(&w->b, &purge), 0);
    lp_job count = {.op = LP_COUNT, .counts = &w->counts};
    ck_assert_int_eq(ask(&w->b, &count), 0);
    ck_assert_uint_eq(w->counts.dead, 0);
}

static void take_damage(int store, size_t k, size_t first, size_t count, bool variant,
                        bool *claimed)
{
    world w;
    make_world(&w, store);
    what = damages[k].key;
    if (damages[k].bytes)
        damage_hash(&w, &damages[k]);
    else
        damage_set(&w, what);
    ask_all(&w, first, count, variant, claimed);
    go_on(&w);
    free_world(&w);
}

/* In the soak each kind of job finds each kind of damage first, twice. */
START_TEST(damage_is_one_orders_affair)
{
    size_t rounds = (size_t)tier(1, 1, 2 * ASKED);
    for (size_t k = 0; k < DAMAGES; k++)
        for (size_t i = 0; i < rounds; i++) {
            bool claimed[IDS] = {false};
            take_damage(_i, k, 5 * (rounds * k + i) % ASKED, ASKED, i % 2, claimed);
        }
}
END_TEST

/* Where nothing is asked, nothing is left out: what was due is claimed, damaged or not. */
START_TEST(what_is_damaged_is_claimed_for_a_dead_letter)
{
    for (size_t k = 0; k < DAMAGES; k++) {
        bool claimed[IDS] = {false};
        if (strcmp(damages[k].key, "queues") == 0)
            continue; /* Of what queue it is is not known: that is the queue's affair. */
        take_damage(_i, k, 0, 0, false, claimed);
        ck_assert_msg(claimed[DUE] && claimed[AGAIN] && claimed[LATE], "%s %zu: %d %d %d", what, k,
                      claimed[DUE], claimed[AGAIN], claimed[LATE]);
    }
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "one record");
    ADD_FOR_STORES(group, a_record_that_is_gone_holds_nobody_up);
    ADD_FOR_STORES(group, a_record_that_is_damaged_holds_nobody_up);
    group = add_group(suite, "any bytes in any place");
    ADD_FOR_STORES(group, what_is_damaged_is_claimed_for_a_dead_letter);
    ADD_FOR_STORES(group, damage_is_one_orders_affair);
}

int main(void)
{
    return stores_main("redis damage", fill_suite);
}
