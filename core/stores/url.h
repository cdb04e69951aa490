/* url.h - the parts of a store's URL.
 *
 *     scheme:...?name=value&name=value
 *     scheme://user:password@host:port/path?name=value
 *
 * Names and values of options are read as they stand, without %-decoding: but for ticket= the
 * options of the stores need none. What stands before them is %-decoded. A password is never part of a
 * message. */
#ifndef LP_URL_H
#define LP_URL_H

#include "stores/store.h"

/* One option of the query: pointers into the URL, not terminated. */
typedef struct lp_url_option {
    const char *name, *value;
    size_t name_len, value_len;
} lp_url_option;

/* Where the options begin: behind the first '?', or at the end. */
const char *lp_url_query(const char *url);

/* Walk the options: *at starts as lp_url_query and is moved on. False after the last. */
bool lp_url_next(const char **at, lp_url_option *out);

bool lp_url_is(const lp_url_option *option, const char *name);
bool lp_url_value_is(const lp_url_option *option, const char *value);

/* Refuse a value: LAPSE_EURL with the option, its value and what is wanted. */
int lp_url_refuse(const lp_url_option *option, const char *wanted);

/* Read a value: a number with a unit (ns, us, ms, s, m, h, d), or a whole number.
 * LAPSE_EURL with the option's name in the detail when it is none, LAPSE_ERANGE when it
 * is outside `min` to `max`. */
int lp_url_duration(const lp_url_option *option, lapse_ns min, lapse_ns max, lapse_ns *out);
int lp_url_number(const lp_url_option *option, uint64_t min, uint64_t max, uint64_t *out);

/* Read a value that is %-encoded, since it is a URL itself for instance, into *out from malloc,
 * which is freed before. LAPSE_EURL does not show it. */
int lp_url_decoded(const lp_url_option *option, const char *name, char **out);

/* Read an option that every store has into `config`: max_pending, max_dead, keep, lease,
 * stuck_after, overflow. 1: it is none of these. */
int lp_url_common(const lp_url_option *option, lp_store_config *config);

/* Read one of a store's own options: 0 or an error, lp_url_unknown for none of them. */
typedef int (*lp_url_reader)(const lp_url_option *option, void *arg);

/* Read all options of config->url: what every store has into `config`, the rest by `own`. */
int lp_url_read_options(lp_store_config *config, lp_url_reader own, void *arg);

/* LAPSE_EURL for an option that a store does not have, with those that it has. */
int lp_url_unknown(const lp_url_option *option, const char *scheme, const char *known);

/* Whether the URL has this option, whatever its value. */
bool lp_url_has(const char *url, const char *name);

/* What a durable store takes where nobody said anything. */
void lp_url_fill_in(lp_store_config *config);

/* What stands between "scheme://" and the options, %-decoded, from malloc; NULL: not given.
 * `port` is 0 when none is given. An IPv6 host is without its brackets; `path` is what follows
 * the first '/'. */
typedef struct lp_url_place {
    char *user, *password, *host, *path;
    unsigned port;
} lp_url_place;

/* LAPSE_EURL or LAPSE_ENOMEM, and nothing to free. */
int lp_url_read_place(const char *url, lp_url_place *out);
void lp_url_free_place(lp_url_place *place);

/* For a client library that reads the place itself, a list of hosts too, and whose errors would
 * show of a URL that is written wrongly what may be a password: LAPSE_EURL for such a one. */
int lp_url_check_place(const char *url);

#endif
