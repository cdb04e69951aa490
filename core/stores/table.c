/* table.c - from a URL's scheme to the store.
 *
 * A store that a build leaves out keeps its row, so that opening it says what to
 * install. */
#include <string.h>

#include "base/error.h"
#include "stores/table.h"

const lp_durable_ops *lp_test_store;

#ifdef LAPSE_WITH_SQLITE
#define SQLITE_STORE (&lp_sqlite_store)
#else
#define SQLITE_STORE NULL
#endif
#ifdef LAPSE_WITH_POSTGRESQL
#define POSTGRESQL_STORE (&lp_postgresql_store)
#else
#define POSTGRESQL_STORE NULL
#endif
#ifdef LAPSE_WITH_REDIS
#define REDIS_STORE (&lp_redis_store)
#else
#define REDIS_STORE NULL
#endif
#ifdef LAPSE_WITH_RABBITMQ
#define RABBITMQ_STORE (&lp_rabbitmq_store)
#else
#define RABBITMQ_STORE NULL
#endif

/* clang-format off */
static const struct {
    const char *scheme;
    lp_store_kind kind;
    const char *name, *package; /* what to install when `kind` is empty; NULL: no version has it */
} table[] = {
    {"memory", {&lp_memory_store, NULL}, NULL, NULL},
    {"sqlite", {NULL, SQLITE_STORE}, "SQLite", "libsqlite3-dev"},
    {"postgresql", {NULL, POSTGRESQL_STORE}, "PostgreSQL", "libpq-dev"},
    {"postgres", {NULL, POSTGRESQL_STORE}, "PostgreSQL", "libpq-dev"},
    {"redis", {NULL, REDIS_STORE}, "Redis", "libhiredis-dev"},
    {"rediss", {NULL, REDIS_STORE}, "Redis", "libhiredis-dev"},
    {"amqp", {NULL, RABBITMQ_STORE}, "RabbitMQ", "librabbitmq-dev"},
    {"amqps", {NULL, RABBITMQ_STORE}, "RabbitMQ", "librabbitmq-dev"},
};
/* clang-format on */

static bool is_missing(const lp_store_kind *kind)
{
    return !kind->ops && !kind->durable;
}

static int missing(const char *name, const char *package)
{
    if (package)
        return lp_fail(LAPSE_ESTORE,
                       "this build of lapse has no %s store: install %s and build it again", name,
                       package);
    return lp_fail(LAPSE_ESTORE,
                   "the %s store is not in this version of lapse (%s): use memory:", name,
                   lapse_version());
}

int lp_store_find(const char *url, lp_store_kind *out)
{
    size_t len = strcspn(url, ":");
    if (url[len] != ':')
        return lp_fail(LAPSE_EURL, "the store URL has no scheme: use for instance memory:");
    if (lp_test_store && len == 4 && memcmp(url, "test", 4) == 0) {
        *out = (lp_store_kind){NULL, lp_test_store};
        return LAPSE_OK;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strlen(table[i].scheme) != len || memcmp(url, table[i].scheme, len) != 0)
            continue;
        *out = table[i].kind;
        return is_missing(out) ? missing(table[i].name, table[i].package) : LAPSE_OK;
    }
    return lp_fail(LAPSE_EURL,
                   "%s is not the scheme of a store: use memory:, sqlite:, postgresql:, redis: or "
                   "amqp:",
                   lp_text_quote(url, len < 32 ? len : 32));
}
