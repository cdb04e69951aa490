/* table.h - from a URL's scheme to the store. */
#ifndef LP_TABLE_H
#define LP_TABLE_H

#include "stores/durable.h"

/* One of the two is set. */
typedef struct lp_store_kind {
    const lp_store_ops *ops;       /* answers inline */
    const lp_durable_ops *durable; /* needs a driver */
} lp_store_kind;

/* The store for a URL's scheme. 0, LAPSE_EURL or LAPSE_ESTORE. */
int lp_store_find(const char *url, lp_store_kind *out);

/* Tests put a store of their own here, for the scheme "test". */
extern const lp_durable_ops *lp_test_store;

#endif
