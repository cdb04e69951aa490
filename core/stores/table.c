/* table.c - from a URL's scheme to the store.
 *
 * A store that a build leaves out keeps its row, so that opening it says what to
 * install. */
#include <string.h>

#include "base/error.h"
#include "stores/store.h"

/* clang-format off */
static const struct {
    const char *scheme;
    const lp_store_ops *ops;
    const char *missing; /* what to do when `ops` is NULL */
} table[] = {
    {"memory", &lp_memory_store, NULL},
    {"sqlite", NULL, "SQLite"},
    {"postgresql", NULL, "PostgreSQL"},
    {"postgres", NULL, "PostgreSQL"},
    {"redis", NULL, "Redis"},
    {"rediss", NULL, "Redis"},
    {"amqp", NULL, "RabbitMQ"},
    {"amqps", NULL, "RabbitMQ"},
};
/* clang-format on */

const lp_store_ops *lp_store_find(const char *url, int *code)
{
    size_t len = strcspn(url, ":");
    if (url[len] != ':') {
        *code = lp_fail(LAPSE_EURL, "the store URL has no scheme: use for instance memory:");
        return NULL;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strlen(table[i].scheme) != len || memcmp(url, table[i].scheme, len) != 0)
            continue;
        if (!table[i].ops)
            *code = lp_fail(LAPSE_ESTORE,
                            "the %s store is not in this version of lapse (%s): use memory:",
                            table[i].missing, lapse_version());
        return table[i].ops;
    }
    *code = lp_fail(LAPSE_EURL, "%s is not the scheme of a store: use memory:",
                    lp_text_quote(url, len < 32 ? len : 32));
    return NULL;
}
