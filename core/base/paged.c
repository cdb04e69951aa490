/* paged.c - a growing array whose entries never move, and memory by the page. */
#include "paged.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "lapse.h"

enum { ROOT_FIRST = 4 }; /* pointers in the first root */

/* Room for one more leaf in the root. */
static int grow_root(lp_paged *a)
{
    if (a->leaves < a->room)
        return 0;
    if (a->room == LP_PAGED_ROOT_MAX)
        return LAPSE_ENOMEM;
    uint32_t room = a->room ? a->room * 2 : ROOT_FIRST;
    char **root = realloc(a->root, room * sizeof *root);
    if (!root)
        return LAPSE_ENOMEM;
    a->root = root;
    a->room = room;
    return 0;
}

static int add_leaf(lp_paged *a, size_t entry_size)
{
    int rc = grow_root(a);
    if (rc < 0)
        return rc;
    char *leaf = calloc(LP_PAGED_LEAF, entry_size);
    if (!leaf)
        return LAPSE_ENOMEM;
    a->root[a->leaves++] = leaf;
    return 0;
}

int lp_paged_reserve(lp_paged *a, size_t count, size_t entry_size)
{
    while (lp_paged_size(a) < count) {
        int rc = add_leaf(a, entry_size);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void lp_paged_trim(lp_paged *a, size_t count)
{
    size_t keep = ((count + LP_PAGED_LEAF - 1) >> LP_PAGED_BITS) + 1;
    while (a->leaves > keep)
        free(a->root[--a->leaves]);
}

void lp_paged_free(lp_paged *a)
{
    while (a->leaves > 0)
        free(a->root[--a->leaves]);
    free(a->root);
    *a = (lp_paged){0};
}

size_t lp_paged_bytes(const lp_paged *a, size_t entry_size)
{
    return a->room * sizeof *a->root + lp_paged_size(a) * entry_size;
}

void *lp_pages_take(size_t bytes)
{
    assert(bytes % LP_PAGE == 0);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void *lp_pages_take_huge(void)
{
    size_t around = LP_HUGE_PAGE - LP_PAGE;
    char *memory = lp_pages_take(LP_HUGE_PAGE + around);
    if (!memory)
        return NULL;
    size_t before = -(uintptr_t)memory % LP_HUGE_PAGE;
    if (before > 0)
        (void)munmap(memory, before); /* Else it stays unused, and costs no memory. */
    if (before < around)
        (void)munmap(memory + before + LP_HUGE_PAGE, around - before);
    (void)madvise(memory + before, LP_HUGE_PAGE, MADV_HUGEPAGE); /* Small pages do as well. */
    return memory + before;
}

void lp_pages_give(void *memory, size_t bytes)
{
    /* Unmapping the middle of a mapping splits it, which the system refuses when there
     * are too many: then at least the memory goes back, and the addresses stay ours. */
    if (memory && munmap(memory, bytes) < 0)
        lp_pages_drop(memory, bytes);
}

void lp_pages_drop(void *memory, size_t bytes)
{
    if (bytes > 0)
        (void)madvise(memory, bytes, MADV_DONTNEED);
}
