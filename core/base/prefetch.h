/* prefetch.h - load memory into the cache ahead of its use. */
#ifndef LP_PREFETCH_H
#define LP_PREFETCH_H

/* The empty statement keeps the compiler from finding that a function which only does
 * this has no effect and may be left out; gcc does so with the builtin alone. */
static inline void lp_prefetch(const void *at)
{
    __asm__ volatile("");
    __builtin_prefetch(at, 1);
}

#endif
