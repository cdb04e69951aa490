/* paged.h - a growing array whose entries never move, and memory by the page.
 *
 * A root of pointers to leaves of 512 entries. Growth adds one leaf at a time; the
 * root doubles up to LP_PAGED_ROOT_MAX pointers, so the longest copy is a constant.
 * The entry's size is passed to every call and is the same in all of them. Not for
 * concurrent use: the owner serialises all calls. */
#ifndef LP_PAGED_H
#define LP_PAGED_H

#include <stddef.h>
#include <stdint.h>

enum {
    LP_PAGED_BITS = 9,
    LP_PAGED_LEAF = 1 << LP_PAGED_BITS, /* entries in a leaf */
    LP_PAGED_ROOT_MAX = 8192            /* leaves at most: 4 Mi entries */
};

/* All zero is an empty array. */
typedef struct lp_paged {
    char **root;
    uint32_t leaves; /* in use */
    uint32_t room;   /* pointers the root has room for */
} lp_paged;

/* Make entries 0 to count - 1 exist; new ones are zero. 0 or LAPSE_ENOMEM. */
int lp_paged_reserve(lp_paged *a, size_t count, size_t entry_size);

/* Free the leaves that hold no entry below `count`, but one more is kept, so that a
 * count that swings around a leaf's edge costs nothing. The entries from `count` on
 * that remain keep what they hold. */
void lp_paged_trim(lp_paged *a, size_t count);

/* Free everything; the array is empty again. */
void lp_paged_free(lp_paged *a);

size_t lp_paged_bytes(const lp_paged *a, size_t entry_size);

/* How many entries exist. */
static inline size_t lp_paged_size(const lp_paged *a)
{
    return (size_t)a->leaves << LP_PAGED_BITS;
}

/* The entry, which must exist. */
static inline void *lp_paged_at(const lp_paged *a, size_t index, size_t entry_size)
{
    return a->root[index >> LP_PAGED_BITS] + (index & (LP_PAGED_LEAF - 1)) * entry_size;
}

enum { LP_PAGE = 4096 }; /* the sizes below are multiples of it */

/* Zeroed memory straight from the system, or NULL; and straight back to it. */
void *lp_pages_take(size_t bytes);
void lp_pages_give(void *memory, size_t bytes);

enum { LP_HUGE_PAGE = 2 << 20 };

/* LP_HUGE_PAGE bytes, zeroed, aligned to their size, or NULL; the system is asked to use one
 * large page for them. To be given back with lp_pages_give. */
void *lp_pages_take_huge(void);

/* Give the memory back but keep the addresses. What it holds afterwards is undefined. */
void lp_pages_drop(void *memory, size_t bytes);

#endif
