/* postgresql_value.c - parameters and results as they go over the wire: binary, big-endian. */
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "stores/postgresql.h"

/* -- Parameters -- */

static void add(args *a, const void *value, size_t len)
{
    a->value[a->count] = value;
    a->length[a->count++] = (int)len;
}

/* A copy of up to 16 bytes. */
static void add_copy(args *a, const void *value, size_t len)
{
    memcpy(a->room[a->count], value, len);
    add(a, a->room[a->count], len);
}

void lp_arg_null(args *a)
{
    add(a, NULL, 0);
}

void lp_arg_bytes(args *a, const void *bytes, size_t len)
{
    add(a, bytes ? bytes : "", len);
}

void lp_arg_text(args *a, const char *text)
{
    add(a, text, strlen(text));
}

void lp_arg_number(args *a, int64_t n)
{
    uint64_t big = htobe64((uint64_t)n);
    add_copy(a, &big, sizeof big);
}

void lp_arg_small(args *a, int32_t n)
{
    uint32_t big = htobe32((uint32_t)n);
    add_copy(a, &big, sizeof big);
}

void lp_arg_bool(args *a, bool b)
{
    add_copy(a, b ? "\1" : "\0", 1);
}

void lp_arg_time(args *a, int64_t at)
{
    lp_arg_number(a, at);
}

void lp_arg_wait(args *a, lapse_ns wait)
{
    /* Microseconds, and no days or months. */
    int64_t us = wait / 1000 + (wait % 1000 > 0);
    uint64_t interval[2] = {htobe64((uint64_t)us), 0};
    add_copy(a, interval, sizeof interval);
}

static unsigned char *write_small(unsigned char *at, uint32_t n)
{
    uint32_t big = htobe32(n);
    memcpy(at, &big, sizeof big);
    return at + sizeof big;
}

/* One dimension, no nulls, of elements that need `bytes` in all beside their lengths. */
static unsigned char *start_array(args *a, char type, size_t count, size_t bytes, size_t *size)
{
    *size = 20 + 4 * count + bytes;
    unsigned char *at = malloc(*size);
    if (!at)
        return NULL;
    a->made = (char *)at;
    at = write_small(at, count ? 1 : 0);
    at = write_small(at, 0);
    at = write_small(at, lp_type_oid(type));
    at = write_small(at, (uint32_t)count);
    return write_small(at, 1);
}

bool lp_arg_numbers(args *a, const int64_t *numbers, size_t count)
{
    size_t size;
    unsigned char *at = start_array(a, 'l', count, 8 * count, &size);
    for (size_t i = 0; at && i < count; i++) {
        uint64_t big = htobe64((uint64_t)numbers[i]);
        at = write_small(at, sizeof big);
        memcpy(at, &big, sizeof big);
        at += sizeof big;
    }
    if (at)
        add(a, a->made, count ? size : 12);
    return at != NULL;
}

bool lp_arg_names(args *a, const char *const *names, const size_t *lens, size_t count)
{
    size_t size, bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += lens[i];
    unsigned char *at = start_array(a, 'b', count, bytes, &size);
    for (size_t i = 0; at && i < count; i++) {
        at = write_small(at, (uint32_t)lens[i]);
        memcpy(at, names[i], lens[i]);
        at += lens[i];
    }
    if (at)
        add(a, a->made, count ? size : 12);
    return at != NULL;
}

unsigned lp_type_oid(char type)
{
    static const struct {
        char type;
        unsigned oid; /* as the server has always had them */
    } types[] = {{'b', 17}, {'B', 1001}, {'i', 23},   {'l', 20},  {'L', 1016},
                 {'o', 16}, {'s', 25},   {'t', 1184}, {'w', 1186}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type)
            return types[i].oid;
    return 0;
}

/* -- Results -- */

static const char *value_of(const PGresult *r, int row, int column, size_t size)
{
    bool there = row < PQntuples(r) && column < PQnfields(r) && !PQgetisnull(r, row, column) &&
                 (size_t)PQgetlength(r, row, column) >= size;
    return there ? PQgetvalue(r, row, column) : NULL;
}

int64_t lp_value_number(const PGresult *r, int row, int column)
{
    const char *value = value_of(r, row, column, 8);
    uint64_t big = 0;
    if (value)
        memcpy(&big, value, sizeof big);
    return (int64_t)be64toh(big);
}

int32_t lp_value_small(const PGresult *r, int row, int column)
{
    const char *value = value_of(r, row, column, 4);
    uint32_t big = 0;
    if (value)
        memcpy(&big, value, sizeof big);
    return (int32_t)be32toh(big);
}

bool lp_value_bool(const PGresult *r, int row, int column)
{
    const char *value = value_of(r, row, column, 1);
    return value && *value;
}

char *lp_value_copy(const PGresult *r, int row, int column, size_t *len)
{
    const char *value = value_of(r, row, column, 0);
    size_t n = value ? (size_t)PQgetlength(r, row, column) : 0;
    char *copy = malloc(n + 1);
    if (!copy)
        return NULL;
    if (n)
        memcpy(copy, value, n);
    copy[n] = '\0';
    if (len)
        *len = n;
    return copy;
}

static uint32_t read_small(const char *at)
{
    uint32_t big;
    memcpy(&big, at, sizeof big);
    return be32toh(big);
}

/* Behind the array's head of 20 bytes: a length and its bytes, again and again. */
bool lp_value_element(const PGresult *r, int row, int column, size_t *at, const char **bytes,
                      size_t *len)
{
    const char *value = value_of(r, row, column, 20);
    size_t size = value ? (size_t)PQgetlength(r, row, column) : 0;
    if (*at == 0)
        *at = 20;
    if (!value || *at + 4 > size)
        return false;
    *len = read_small(value + *at);
    if (*len > size - *at - 4)
        return false;
    *bytes = value + *at + 4;
    *at += 4 + *len;
    return true;
}
