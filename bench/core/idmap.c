/* idmap.c - order id -> order: see idmap.h. */
#include "idmap.h"

#include <stdlib.h>
#include <string.h>

#include "bench.h"

__extension__ typedef unsigned __int128 uint128;

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint128 product = (uint128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t word(const char *bytes, size_t len)
{
    uint64_t w = 0;
    memcpy(&w, bytes, len);
    return w;
}

static uint64_t hash_id(const char *id)
{
    size_t len = strlen(id);
    uint64_t hash = len ^ UINT64_C(0x9e3779b97f4a7c15);
    while (len > 8) {
        hash = mix(hash ^ word(id, 8), UINT64_C(0xd6e8feb86659fd93));
        id += 8;
        len -= 8;
    }
    return mix(hash ^ word(id, len), UINT64_C(0xa0761d6478bd642f));
}

static idmap_entry *new_entries(size_t count)
{
    idmap_entry *entries = calloc(count, sizeof *entries);
    if (!entries)
        bench_die("out of memory for %zu entries of the id map", count);
    return entries;
}

void idmap_init(idmap *map)
{
    *map = (idmap){.entries = new_entries(64), .mask = 63};
}

static void grow(idmap *map)
{
    size_t mask = map->mask * 2 + 1;
    idmap_entry *entries = new_entries(mask + 1);
    for (size_t i = 0; i <= map->mask; i++) {
        idmap_entry *entry = &map->entries[i];
        if (!entry->id)
            continue;
        size_t at = entry->hash & mask;
        while (entries[at].id)
            at = (at + 1) & mask;
        entries[at] = *entry;
    }
    free(map->entries);
    map->entries = entries;
    map->mask = mask;
}

/* The entry of this id, or the free one where it belongs. */
static size_t find(const idmap *map, uint64_t hash, const char *id)
{
    size_t at = hash & map->mask;
    for (; map->entries[at].id; at = (at + 1) & map->mask)
        if (map->entries[at].hash == hash && strcmp(map->entries[at].id, id) == 0)
            break;
    return at;
}

bool idmap_insert(idmap *map, char *id)
{
    if (map->count * 4 >= (map->mask + 1) * 3)
        grow(map);
    uint64_t hash = hash_id(id);
    size_t at = find(map, hash, id);
    if (map->entries[at].id)
        return false;
    map->entries[at] = (idmap_entry){.hash = hash, .id = id};
    map->count += 1;
    return true;
}

/* Close the gap at `at`, so that every probe still reaches its entry. */
static void shift_back(idmap *map, size_t at)
{
    size_t next = at;
    for (;;) {
        next = (next + 1) & map->mask;
        if (!map->entries[next].id)
            break;
        size_t home = map->entries[next].hash & map->mask;
        if (((next - home) & map->mask) < ((next - at) & map->mask))
            continue;
        map->entries[at] = map->entries[next];
        at = next;
    }
    map->entries[at].id = NULL;
}

char *idmap_remove(idmap *map, const char *id)
{
    size_t at = find(map, hash_id(id), id);
    char *found = map->entries[at].id;
    if (found) {
        shift_back(map, at);
        map->count -= 1;
    }
    return found;
}
