/* slots.c - the callbacks of a scheduler's orders, by number.
 *
 * A number has a cell that counts the orders which have its callback; without any it is in
 * the free or the released list. Cells lie in aligned pages that never move and know their
 * owner, so that an order's `arg`, the address of a cell, is enough to release it. A number
 * is released by the library in the middle of its work, where Lua must not be entered:
 * slots_drain does the rest when the call is back in the glue.
 *
 * Most programs have one function for all their orders, and some have a new one for each.
 * The numbers used last are remembered by their functions' addresses, so that in the first
 * case there is one number and one entry in the table. An address names one function as long
 * as that is anchored, which is as long as anything counts in its cell. */
#include "slots.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct slot_cell {
    const void *function; /* NULL: what is called is no function */
    uint32_t users;       /* orders and handlers that have it */
    uint32_t next;        /* the next number in the same list; 0: the last */
} slot_cell;

enum { PAGE_BYTES = 4096, CELLS = PAGE_BYTES / sizeof(slot_cell) - 1 };

typedef struct slot_page {
    slots *owner;
    uint32_t first; /* number of cells[0] */
    uint32_t unused;
    slot_cell cells[CELLS];
} slot_page;

_Static_assert(sizeof(slot_page) == PAGE_BYTES, "a page is found by masking an address");

static slot_page *page_of(const void *arg)
{
    return (slot_page *)((uintptr_t)arg & ~(uintptr_t)(PAGE_BYTES - 1));
}

static slot_cell *cell_of(const slots *s, uint32_t number)
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

/* Where the number of a function is remembered. */
static uint32_t *memory_of(slots *s, const void *function)
{
    uintptr_t mixed = (uintptr_t)function >> 4;
    return &s->recent[(mixed ^ (mixed >> 7)) % SLOTS_RECENT];
}

/* The number that the function has already, counted once more; 0: none that is remembered. */
static uint32_t use_again(slots *s, const void *function)
{
    uint32_t number = *memory_of(s, function);
    if (!number)
        return 0;
    slot_cell *cell = cell_of(s, number);
    if (cell->function != function || cell->users == 0 || cell->users == UINT32_MAX)
        return 0;
    cell->users++;
    return number;
}

/* A number that is in no list; it is not in use yet. 0 without memory. */
static uint32_t next_number(slots *s)
{
    if (s->free)
        return s->free;
    if (s->made == s->page_count * CELLS && !add_page(s))
        return 0;
    return s->made + 1;
}

static void use(slots *s, uint32_t number, const void *function)
{
    slot_cell *cell = cell_of(s, number);
    if (number == s->free)
        s->free = cell->next;
    else
        s->made = number;
    *cell = (slot_cell){.function = function, .users = 1};
    if (function)
        *memory_of(s, function) = number;
}

uint32_t slots_anchor(lua_State *L, slots *s, int callback)
{
    const void *function = lua_topointer(L, callback);
    uint32_t number = function ? use_again(s, function) : 0;
    if (number)
        return number;
    if (!lua_isfunction(L, callback))
        function = NULL;
    number = next_number(s);
    if (!number)
        return 0;
    glue_get_own(L, 1);
    lua_pushvalue(L, callback);
    lua_rawseti(L, -2, (int)number); /* May raise: the number is not in use yet. */
    lua_pop(L, 1);
    use(s, number, function);
    return number;
}

void *slots_arg(const slots *s, uint32_t number)
{
    return cell_of(s, number);
}

uint32_t slots_number(const void *arg)
{
    const slot_page *page = page_of(arg);
    return page->first + (uint32_t)((const slot_cell *)arg - page->cells);
}

void slots_use(void *arg)
{
    ((slot_cell *)arg)->users++;
}

void slots_release(void *arg)
{
    slots *s = page_of(arg)->owner;
    slot_cell *cell = arg;
    if (--cell->users > 0)
        return;
    cell->next = s->released;
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
    slots_release(cell_of(s, number));
    slots_drain(L, s);
}

void slots_drain(lua_State *L, slots *s)
{
    if (!s->released)
        return;
    glue_get_own(L, 1);
    while (s->released) {
        uint32_t number = s->released;
        slot_cell *cell = cell_of(s, number);
        clear(L, number);
        s->released = cell->next;
        cell->next = s->free;
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
    memset(s->recent, 0, sizeof s->recent);
}

void slots_close(slots *s)
{
    for (uint32_t i = 0; i < s->page_count; i++)
        free(s->pages[i]);
    free(s->pages);
    *s = (slots){0};
}
