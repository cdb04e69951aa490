/* redis_check.c - what of the server's settings loses orders: said when the store is opened. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/redis.h"

/* The value of a line "name:value" of INFO, copied; "" when there is none. */
static void find(const char *info, const char *name, char *out, size_t size)
{
    size_t len = strlen(name);
    *out = '\0';
    for (const char *at = info; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, name, len) != 0 || at[len] != ':')
            continue;
        size_t n = strcspn(at + len + 1, "\r\n");
        n = n < size ? n : size - 1;
        memcpy(out, at + len + 1, n);
        out[n] = '\0';
        return;
    }
}

static bool is(const char *info, const char *name, const char *value)
{
    char found[64];
    find(info, name, found, sizeof found);
    return strcmp(found, value) == 0;
}

static long long number(const char *info, const char *name)
{
    char found[64];
    find(info, name, found, sizeof found);
    return strtoll(found, NULL, 10);
}

/* They are told once, and stay. */
void lp_redis_warn(redis_store *d, const char *text)
{
    if (!d->is_open && d->warning_count < LP_REDIS_WARNINGS)
        snprintf(d->warnings[d->warning_count++], LP_REDIS_WARNING_MAX, "%s", text);
}

/* Orders have no expiry: policies that drop only keys with one are harmless. */
static int check_eviction(redis_store *d, const char *info)
{
    char policy[64];
    find(info, "maxmemory_policy", policy, sizeof policy);
    if (strncmp(policy, "allkeys-", 8) != 0)
        return LAPSE_OK;
    if (d->options.evict) {
        lp_redis_warn(
            d, "Redis drops orders when its memory is used up (maxmemory-policy allkeys-...)");
        return LAPSE_OK;
    }
    return lp_fail(LAPSE_EUNSUPPORTED,
                   "Redis drops any keys, orders too, when its memory is used up: set "
                   "maxmemory-policy to noeviction (it is %s), or say eviction=allow in the URL",
                   policy);
}

static bool has_save_points(redis_store *d)
{
    lp_redis_clear(&d->words);
    lp_redis_text(&d->words, "CONFIG");
    lp_redis_text(&d->words, "GET");
    lp_redis_text(&d->words, "save");
    redisReply *r = lp_redis_ask(d->link, &d->words);
    bool has = true; /* Not everybody may ask. */
    if (r && r->type == REDIS_REPLY_ARRAY && r->elements == 2 && r->element[1]->str)
        has = *r->element[1]->str != '\0';
    if (r)
        freeReplyObject(r);
    return has;
}

static void check_persistence(redis_store *d, const char *info)
{
    if (is(info, "aof_enabled", "1"))
        return;
    if (has_save_points(d))
        lp_redis_warn(
            d, "Redis has no append-only file: what was scheduled since its last snapshot is lost "
               "when it ends; set appendonly yes");
    else
        lp_redis_warn(
            d, "Redis keeps nothing on disk: all orders are lost when it ends; set appendonly yes");
}

static int check_replicas(redis_store *d, const char *info)
{
    d->replicas = (uint64_t)number(info, "connected_slaves");
    if (d->replicas > 0 && d->options.wait == 0)
        lp_redis_warn(
            d, "Redis has replicas, which confirm nothing: a fail-over may lose the last orders; "
               "say wait=1 in the URL");
    if (d->replicas < d->options.wait) {
        char text[LP_REDIS_WARNING_MAX];
        snprintf(text, sizeof text,
                 "Redis has %llu replicas and the URL says wait=%llu: until there are more, "
                 "scheduling and cancelling are answered with LAPSE_EUNSURE",
                 (unsigned long long)d->replicas, (unsigned long long)d->options.wait);
        lp_redis_warn(d, text);
    }
    return LAPSE_OK;
}

static int check(redis_store *d, const char *info)
{
    d->version = (int)number(info, "redis_version");
    if (d->version > 0 && d->version < 5)
        return lp_fail(LAPSE_EUNSUPPORTED, "this Redis is of version %d: 5 or newer is needed",
                       d->version);
    if (is(info, "role", "slave"))
        return lp_fail(LAPSE_EOFFLINE,
                       "this Redis is a replica, which cannot be written: name its primary");
    if (is(info, "loading", "1"))
        return lp_fail(LAPSE_EOFFLINE, "Redis is still loading its data");
    d->is_limited = d->is_limited || number(info, "maxmemory") > 0;
    int code = check_eviction(d, info);
    if (code == LAPSE_OK)
        check_persistence(d, info);
    return code < 0 ? code : check_replicas(d, info);
}

int lp_redis_check(redis_store *d)
{
    lp_redis_clear(&d->words);
    lp_redis_text(&d->words, "INFO");
    redisReply *r = lp_redis_ask(d->link, &d->words);
    if (!r)
        return LAPSE_EOFFLINE;
    int code = LAPSE_OK;
    if (r->type == REDIS_REPLY_STRING || r->type == REDIS_REPLY_STATUS)
        code = check(d, r->str);
    else if (r->type == REDIS_REPLY_ERROR)
        code = lp_redis_refused(r);
    freeReplyObject(r);
    return code;
}
