/* sqlite_row.c - an order's row: its id, its checksum, and the places it moves between. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/sqlite.h"

/* -- Ids --
 *
 * An id is stored as its bytes. Only a UUID in its usual form (lower case, with hyphens) is
 * packed: a zero byte, which no id holds, and its 16 bytes. */

enum { UUID_TEXT = 36, UUID_PACKED = 17 };

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool is_hyphen(int at)
{
    return at == 8 || at == 13 || at == 18 || at == 23;
}

static bool pack_uuid(const char *id, unsigned char *out)
{
    *out++ = 0;
    for (int i = 0; i < UUID_TEXT;) {
        if (is_hyphen(i)) {
            if (id[i++] != '-')
                return false;
            continue;
        }
        int high = hex_digit(id[i]), low = hex_digit(id[i + 1]);
        if (high < 0 || low < 0)
            return false;
        *out++ = (unsigned char)(high << 4 | low);
        i += 2;
    }
    return true;
}

static size_t unpack_uuid(const unsigned char *bytes, char *out)
{
    static const char digits[] = "0123456789abcdef";
    int n = 0;
    for (int i = 1; i < UUID_PACKED; i++) {
        if (is_hyphen(n))
            out[n++] = '-';
        out[n++] = digits[bytes[i] >> 4];
        out[n++] = digits[bytes[i] & 15];
    }
    out[n] = '\0';
    return UUID_TEXT;
}

key lp_sqlite_key(const char *id, size_t len)
{
    key k;
    k.len = (int)(len < KEY_MAX ? len : KEY_MAX);
    if (len == UUID_TEXT && pack_uuid(id, k.bytes))
        k.len = UUID_PACKED;
    else
        memcpy(k.bytes, id, (size_t)k.len);
    return k;
}

size_t lp_sqlite_id(const void *bytes, int len, char *out)
{
    *out = '\0';
    if (!bytes || len < 1)
        return 0;
    if (len == UUID_PACKED && *(const unsigned char *)bytes == 0)
        return unpack_uuid(bytes, out);
    size_t n = len < LAPSE_ID_MAX ? (size_t)len : LAPSE_ID_MAX;
    memcpy(out, bytes, n);
    out[n] = '\0';
    return n == (size_t)len && !memchr(out, '\0', n) ? n : 0;
}

/* -- Checksum: CRC-32C of id, queue and payload, which never change -- */

static uint32_t crc_of(uint32_t crc, const unsigned char *at, size_t len)
{
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    while (len--) {
        crc ^= *at++;
        crc = table[crc & 15] ^ (crc >> 4);
        crc = table[crc & 15] ^ (crc >> 4);
    }
    return crc;
}

uint32_t lp_sqlite_crc(const key *k, int q, const void *payload, size_t len)
{
    unsigned char number[5] = {(unsigned char)k->len, (unsigned char)q, (unsigned char)(q >> 8),
                               (unsigned char)(q >> 16), (unsigned char)(q >> 24)};
    uint32_t crc = crc_of(UINT32_MAX, number, sizeof number);
    crc = crc_of(crc, k->bytes, (size_t)k->len);
    return ~crc_of(crc, payload, len);
}

static bool matches(sqlite3_stmt *st)
{
    const void *id = sqlite3_column_blob(st, COL_ID);
    int len = sqlite3_column_bytes(st, COL_ID);
    if (len > KEY_MAX || !id)
        return false;
    key k = {.len = len};
    memcpy(k.bytes, id, (size_t)len);
    const void *payload = sqlite3_column_blob(st, COL_PAYLOAD);
    uint32_t crc = lp_sqlite_crc(&k, sqlite3_column_int(st, COL_QUEUE), payload,
                                 (size_t)sqlite3_column_bytes(st, COL_PAYLOAD));
    return (uint32_t)sqlite3_column_int64(st, COL_CRC) == crc;
}

const char *lp_sqlite_flaw(const session *s, sqlite3_stmt *st)
{
    char id[LAPSE_ID_MAX + 1];
    int q = sqlite3_column_int(st, COL_QUEUE);
    if (!lp_sqlite_id(sqlite3_column_blob(st, COL_ID), sqlite3_column_bytes(st, COL_ID), id))
        return "its id was damaged in the database";
    if (q < 0 || (size_t)q >= s->queue_count)
        return "its queue was damaged in the database";
    if (!matches(st))
        return "its row was damaged in the database: the checksum does not match";
    return NULL;
}

/* -- Rows -- */

row lp_sqlite_read_row(sqlite3_stmt *st)
{
    return (row){
        .seq = sqlite3_column_int64(st, COL_SEQ),
        .at = sqlite3_column_int64(st, COL_WHEN),
        .due = sqlite3_column_int64(st, COL_DUE),
        .generation = sqlite3_column_int64(st, COL_GENERATION),
        .fence = sqlite3_column_int64(st, COL_FENCE),
        .queue = sqlite3_column_int(st, COL_QUEUE),
        .attempt = sqlite3_column_int(st, COL_ATTEMPT),
        .no_more = sqlite3_column_int(st, COL_NO_MORE) != 0,
    };
}

bool lp_sqlite_find(session *s, const key *k, row *out)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_ORDER_BY_ID);
    if (!st)
        return false;
    sqlite3_bind_blob(st, 1, k->bytes, k->len, SQLITE_STATIC);
    bool found = lp_sqlite_row(s, st);
    if (found)
        *out = lp_sqlite_read_row(st);
    sqlite3_reset(st);
    sqlite3_clear_bindings(st);
    return found;
}

/* A statement whose only parameter is a row. */
static bool run_on(session *s, int which, int64_t seq)
{
    sqlite3_stmt *st = lp_sqlite_use(s, which);
    if (!st)
        return false;
    sqlite3_bind_int64(st, 1, seq);
    return lp_sqlite_run(s, st);
}

bool lp_sqlite_delete(session *s, const row *r)
{
    if (!run_on(s, ST_ORDER_DELETE, r->seq))
        return false;
    lp_sqlite_count(s, r->queue, -1, 0);
    return true;
}

bool lp_sqlite_end(session *s, const row *r)
{
    if (s->meta.keep > 0) {
        sqlite3_stmt *st = lp_sqlite_use(s, ST_ORDER_END);
        if (!st)
            return false;
        sqlite3_bind_int64(st, 1, r->seq);
        sqlite3_bind_int64(st, 2, s->now);
        if (!lp_sqlite_run(s, st))
            return false;
        s->meta.ended++; /* None of its id was there: it would have been superseded. */
    }
    return lp_sqlite_delete(s, r);
}

bool lp_sqlite_wait(session *s, const row *r, int64_t at, int64_t due, int attempt)
{
    /* Under this policy a row's place tells when it was last accepted. */
    bool moves = s->config.overflow == LAPSE_DEAD_LETTER_OLDEST;
    int64_t seq = moves ? ++s->meta.seq : r->seq;
    sqlite3_stmt *st = lp_sqlite_use(s, ST_ORDER_WAIT);
    if (!st)
        return false;
    sqlite3_bind_int64(st, 1, r->seq);
    sqlite3_bind_int64(st, 2, at);
    if (due < at)
        sqlite3_bind_int64(st, 3, due);
    else
        sqlite3_bind_null(st, 3);
    sqlite3_bind_int(st, 4, attempt);
    sqlite3_bind_int64(st, 5, seq);
    if (seq != r->generation)
        sqlite3_bind_int64(st, 6, r->generation);
    else
        sqlite3_bind_null(st, 6);
    s->changed = true;
    if (at < s->first)
        s->first = at;
    return lp_sqlite_run(s, st);
}

/* -- Dead letters -- */

static bool drop_oldest_dead(session *s)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_DEAD_OLDEST);
    if (!lp_sqlite_row(s, st))
        return false;
    row r = lp_sqlite_read_row(st);
    sqlite3_reset(st);
    if (!run_on(s, ST_DEAD_DELETE, r.seq))
        return false;
    lp_sqlite_count(s, r.queue, 0, -1);
    s->dead_dropped++;
    return true;
}

static bool show_dead(session *s, int64_t seq, lapse_info *info)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_DEAD_BY_SEQ);
    if (!st)
        return false;
    sqlite3_bind_int64(st, 1, seq);
    if (lp_sqlite_row(s, st))
        (void)lp_sqlite_look(s, st, LAPSE_STATE_DEAD, info); /* Without memory: not told. */
    sqlite3_reset(st);
    return !s->failed;
}

bool lp_sqlite_die(session *s, const row *r, int attempt, lapse_reason reason, const char *error,
                   lapse_info *info)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_ORDER_DIE);
    if (!st)
        return false;
    sqlite3_bind_int64(st, 1, r->seq);
    sqlite3_bind_int(st, 2, attempt);
    sqlite3_bind_int64(st, 3, s->now);
    sqlite3_bind_int(st, 4, (int)reason);
    sqlite3_bind_blob(st, 5, error, error ? (int)strlen(error) : 0, SQLITE_STATIC);
    if (!error)
        sqlite3_bind_null(st, 5);
    if (!lp_sqlite_run(s, st))
        return false;
    sqlite3_clear_bindings(st);
    int64_t seq = sqlite3_last_insert_rowid(s->db);
    if (!lp_sqlite_delete(s, r))
        return false;
    lp_sqlite_count(s, r->queue, 0, 1);
    if (info && !show_dead(s, seq, info))
        return false;
    while (s->dead > 0 && (uint64_t)s->dead > s->config.max_dead)
        if (!drop_oldest_dead(s))
            return !s->failed;
    return true;
}

/* -- Ended -- */

bool lp_sqlite_supersede(session *s, const key *k)
{
    if (s->meta.ended > 0) {
        sqlite3_stmt *st = lp_sqlite_use(s, ST_ENDED_DELETE);
        if (!st)
            return false;
        sqlite3_bind_blob(st, 1, k->bytes, k->len, SQLITE_STATIC);
        if (!lp_sqlite_run(s, st))
            return false;
        s->meta.ended -= sqlite3_changes(s->db);
    }
    if (s->dead == 0)
        return true;
    sqlite3_stmt *st = lp_sqlite_use(s, ST_DEAD_UNNAME);
    if (!st)
        return false;
    sqlite3_bind_blob(st, 1, k->bytes, k->len, SQLITE_STATIC);
    return lp_sqlite_run(s, st);
}

/* A loan that only tells of an end. */
static bool tell(session *s, sqlite3_stmt *st, lp_loan **told)
{
    char id[LAPSE_ID_MAX + 1];
    char *name = lp_sqlite_queue_name(s, sqlite3_column_int(st, COL_QUEUE));
    size_t len =
        lp_sqlite_id(sqlite3_column_blob(st, COL_ID), sqlite3_column_bytes(st, COL_ID), id);
    lp_loan *l = lp_loan_make(id, len, name ? name : "", NULL, 0);
    free(name);
    if (!l) {
        s->failed = SQLITE_NOMEM;
        return false;
    }
    l->ended = true;
    l->next = *told;
    *told = l;
    return true;
}

static bool end_what_is_over(session *s, lp_loan **told)
{
    for (;;) {
        sqlite3_stmt *st = lp_sqlite_use(s, ST_OVER);
        if (!st)
            return false;
        sqlite3_bind_int64(st, 1, s->now);
        if (!lp_sqlite_row(s, st))
            return !s->failed;
        row r = lp_sqlite_read_row(st);
        if (told && !tell(s, st, told))
            return false;
        sqlite3_reset(st);
        if (!lp_sqlite_end(s, &r))
            return false;
    }
}

/* No claim comes to a row of a queue that there is not. */
static bool bury_damaged(session *s)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_QUEUE_NONE);
    if (!st)
        return false;
    sqlite3_bind_int64(st, 1, (sqlite3_int64)s->queue_count);
    if (!lp_sqlite_row(s, st))
        return !s->failed;
    row r = lp_sqlite_read_row(st);
    sqlite3_reset(st);
    return lp_sqlite_die(s, &r, r.attempt, LAPSE_REASON_FAILED, "its queue was damaged", NULL);
}

static bool forget_oldest(session *s, bool *was_one)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_ENDED_OLDEST);
    *was_one = false;
    if (!lp_sqlite_row(s, st))
        return !s->failed;
    int64_t seq = sqlite3_column_int64(st, 0), ended = sqlite3_column_int64(st, 1);
    sqlite3_reset(st);
    if (lp_sqlite_is_kept(s, ended))
        return true;
    *was_one = true;
    s->meta.ended--;
    s->changed = true;
    return run_on(s, ST_ENDED_FORGET, seq);
}

bool lp_sqlite_sweep(session *s, lp_loan **told)
{
    enum { MOST = 1024 }; /* in one turn: more than can end in one */
    if (!end_what_is_over(s, told) || !bury_damaged(s))
        return false;
    bool more = s->meta.ended > 0;
    for (int i = 0; more && i < MOST; i++)
        if (!forget_oldest(s, &more))
            return false;
    return true;
}
