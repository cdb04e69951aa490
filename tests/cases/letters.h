/* letters.h - one dead letter of each reason, and what they say: for the memory store and the
 * durable ones alike. */
#ifndef LAPSE_TESTS_LETTERS_H
#define LAPSE_TESTS_LETTERS_H

#include "delivery.h"

/* -- Reasons ----------------------------------------------------------------------------- */

static lapse_verdict die_by_name(const lapse_order *order)
{
    if (strcmp(order->id, "failed") == 0)
        return lapse_fail(order, "gateway down");
    if (strcmp(order->id, "rejected") == 0)
        return lapse_reject(order, "no such account");
    return LAPSE_DONE;
}

/* One dead letter of each reason, in the order in which they die, each with 7 bytes of payload. */
static const struct {
    const char *id, *queue, *error;
    lapse_reason reason;
    int attempt;
} five[] = {
    {"maxlen", "q", "(none)", LAPSE_REASON_MAXLEN, 0},
    {"rejected", "q", "no such account", LAPSE_REASON_REJECTED, 1},
    {"failed", "q", "gateway down", LAPSE_REASON_FAILED, 2},
    {"lost", "pull", NULL, LAPSE_REASON_LOST, 5},
    {"expired", "q", "(none)", LAPSE_REASON_EXPIRED, 0},
};

/* Of a scheduler that has these options, with `told` as their hook_arg. */
static lapse_options options_of_five(letters *told)
{
    return (lapse_options){.max_pending = 4,
                           .overflow = LAPSE_DEAD_LETTER_OLDEST,
                           .hook_arg = told,
                           .on_dead = keep_letter};
}

/* Let all five die; `p` handles "q". */
static void kill_five(rig *r, player *p)
{
    player_open(p, r->s, die_by_name);
    lapse_policy policy = {.attempts = 2, .jitter_percent = -1, .expires = LAPSE_MINUTES(30)};
    handle(r->s, "q", p, &policy);
    put_with_payload(r->s, "q", "maxlen", LAPSE_HOURS(1));
    put_with_payload(r->s, "q", "failed", 0);
    put_with_payload(r->s, "q", "rejected", 0);
    put_with_payload(r->s, "pull", "lost", 0);
    put_with_payload(r->s, "q", "expired", LAPSE_MINUTES(4)); /* One too many. */
    advance(r, LAPSE_MS(1));
    advance(r, LAPSE_SECONDS(1));
    for (int i = 0; i < 5; i++) {
        poll_one(r->s, "pull", "lost");
        advance(r, LAPSE_SECONDS(31));
    }
    const lapse_order *order;
    ck_assert_int_eq(lapse_poll(r->s, "pull", &order), 0);
    ck_assert_int_eq(lapse_clock_advance(r->clock, LAPSE_HOURS(1)), 0);
    advance(r, 0);
}

/* `lost`: what stands on the one whose consumers were lost; NULL: any words. */
static void expect_five(const letters *l, const char *lost)
{
    ck_assert_int_eq(l->count, 5);
    for (int i = 0; i < 5; i++) {
        int at = 0;
        while (at < 5 && strcmp(l->list[at].id, five[i].id) != 0)
            at++;
        ck_assert_msg(at < 5, "no dead letter %s", five[i].id);
        const letter *dead = &l->list[at];
        ck_assert_str_eq(dead->queue, five[i].queue);
        const char *error = five[i].reason == LAPSE_REASON_LOST ? lost : five[i].error;
        if (error != NULL)
            ck_assert_str_eq(dead->error, error);
        else
            ck_assert_ptr_nonnull(strstr(dead->error, " "));
        ck_assert_int_eq(dead->reason, five[i].reason);
        ck_assert_int_eq(dead->attempt, five[i].attempt);
        ck_assert_uint_eq(dead->payload_len, 7);
        ck_assert_int_ge(dead->ended, UTC_START);
        ck_assert_int_eq(dead->ended < dead->due, dead->reason == LAPSE_REASON_MAXLEN);
    }
}

static void expect_five_counted(rig *r)
{
    lapse_stats t = stats_of(r->s);
    lapse_queue_stats q = queue_stats(r->s, "q");
    for (int i = 0; i < 5; i++) {
        ck_assert_uint_eq(t.dead_by[five[i].reason], 1);
        ck_assert_uint_eq(q.dead_by[five[i].reason], five[i].reason != LAPSE_REASON_LOST);
        expect_state(r->s, five[i].id, LAPSE_STATE_DEAD);
    }
    ck_assert_uint_eq(t.dead, 5);
    ck_assert_uint_eq(t.pending, 0);
    expect_books(r->s);
}

/* -- What they say ------------------------------------------------------------------------ */

static char last_words[5000];

static lapse_verdict say_last_words(const lapse_order *order)
{
    return lapse_reject(order, last_words);
}

/* The reason is kept as valid UTF-8 without control characters, of 1000 bytes at most. */
static bool is_clean(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    while (*s != '\0') {
        int more = *s < 0x80 ? 0 : *s < 0xe0 ? 1 : *s < 0xf0 ? 2 : 3;
        if (*s < 0x20 || *s == 0x7f || (*s >= 0x80 && *s < 0xc2) || *s > 0xf4)
            return false;
        for (s++; more > 0; more--)
            if ((*s++ & 0xc0) != 0x80)
                return false;
    }
    return true;
}

static void expect_kept(rig *r, const char *words, const char *kept)
{
    snprintf(last_words, sizeof last_words, "%s", words);
    put(r->s, "q", "o", 0);
    advance(r, LAPSE_MS(1));
    letter dead = only_letter(r->s);
    ck_assert(is_clean(dead.error));
    ck_assert_uint_le(strlen(dead.error), 1000);
    if (kept != NULL)
        ck_assert_str_eq(dead.error, kept);
    ck_assert_int_eq(lapse_purge(r->s, "o", LAPSE_ANY), 1);
}

#endif
