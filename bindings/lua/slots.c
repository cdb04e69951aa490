/* slots.c - the callbacks of a scheduler's orders, by number.
 *
 * A number has a cell of four bytes that links it into the free or the released list.
 * Cells lie in aligned pages that never move and know their owner, so that an order's
 * `arg`, the address of a cell, is enough to release it. A number is released by the
 * library in the middle of its work, where Lua must not be entered: slots_drain does the
 * rest when the call is back in the glue. */
#include "slots.h"

#include <stdbool.h>
#include <stdlib.h>

enum { PAGE_BYTES = 4096, PAGE_HEAD = 16, CELLS = (PAGE_BYTES - PAGE_HEAD) / 4 };

typedef struct slot_page {
    slots *owner;
    uint32_t first; /* number of cells[0] */
    uint32_t unused;
    uint32_t cells[CELLS]; /* the next number in the same list; 0: the last */
} slot_page;

_Static_assert(sizeof(slot_page) == PAGE_BYTES, "a page is found by masking an address");

static slot_page *page_of(const void *arg)
{
    return (slot_page *)((uintptr_t)arg & ~(uintptr_t)(PAGE_BYTES - 1));
}

static uint32_t *cell(const slots *s, uint32_t number)
{
    return &s->pages[(number - 1) / CELLS]->cells[(number - 1) % CELLS];
}

static bool add_page(slots *s)
{
    slot_page **more = realloc(s->pages, (s->page_count + 1) * sizeof(slot_page *));
    if (!more)
        return false;
    s->pages = more;
    slot_page *page = aligned_alloc(PAGE_BYTES, PAGE_BYTES);
    if (!page)
        return false;
    page->owner = s;
    page->first = s->page_count * CELLS + 1;
    s->pages[s->page_count++] = page;
    return true;
}

uint32_t slots_anchor(lua_State *L, slots *s, int callback)
{
    uint32_t number = s->free;
    if (!number) {
        if (s->made == s->page_count * CELLS && !add_page(s))
            return 0;
        number = s->made + 1;
    }
    glue_get_own(L, 1);
    lua_pushvalue(L, callback);
    lua_rawseti(L, -2, (int)number); /* May raise: the number is not in use yet. */
    lua_pop(L, 1);
    if (number == s->free)
        s->free = *cell(s, number);
    else
        s->made = number;
    return number;
}

void *slots_arg(const slots *s, uint32_t number)
{
    return cell(s, number);
}

uint32_t slots_number(const void *arg)
{
    const slot_page *page = page_of(arg);
    return page->first + (uint32_t)((const uint32_t *)arg - page->cells);
}

void slots_release(void *arg)
{
    slots *s = page_of(arg)->owner;
    *(uint32_t *)arg = s->released;
    s->released = slots_number(arg);
}

/* Clear the entry in the table on the stack top. One that holds a value already has its
 * place, so that nothing is allocated. */
static void clear(lua_State *L, uint32_t number)
{
    lua_pushnil(L);
    lua_rawseti(L, -2, (int)number);
}

void slots_drop(lua_State *L, slots *s, uint32_t number)
{
    *cell(s, number) = s->released;
    s->released = number;
    slots_drain(L, s);
}

void slots_drain(lua_State *L, slots *s)
{
    if (!s->released)
        return;
    glue_get_own(L, 1);
    while (s->released) {
        uint32_t number = s->released;
        clear(L, number);
        s->released = *cell(s, number);
        *cell(s, number) = s->free;
        s->free = number;
    }
    lua_pop(L, 1);
}

void slots_forget(lua_State *L, slots *s)
{
    glue_get_own(L, 1);
    for (uint32_t number = 1; number <= s->made; number++) {
        lua_rawgeti(L, -1, (int)number);
        bool held = !lua_isnil(L, -1);
        lua_pop(L, 1);
        if (held)
            clear(L, number);
    }
    lua_pop(L, 1);
    s->made = s->free = s->released = 0;
}

void slots_close(slots *s)
{
    for (uint32_t i = 0; i < s->page_count; i++)
        free(s->pages[i]);
    free(s->pages);
    *s = (slots){0};
}
