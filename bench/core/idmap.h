/* idmap.h - order id -> order, for the peers that have no such thing.
 *
 * Open addressing with linear probing, 16 bytes an entry {hash, id}, backward-shift
 * delete, twice the size at three quarters full. The map keeps the pointer to the id it
 * was given, so an order that carries its id inside is found from it. No lock. */
#ifndef BENCH_IDMAP_H
#define BENCH_IDMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct idmap_entry {
    uint64_t hash;
    char *id; /* NULL: free */
} idmap_entry;

typedef struct idmap {
    idmap_entry *entries;
    size_t mask;
    size_t count;
} idmap;

void idmap_init(idmap *map);

/* False when the id is in it already. */
bool idmap_insert(idmap *map, char *id);

/* The pointer that was inserted, or NULL. */
char *idmap_remove(idmap *map, const char *id);

#endif
