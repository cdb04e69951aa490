/* hash.h - a seeded 64-bit hash of bytes, for tables in memory.
 *
 * Folds the 128-bit product of two words that were mixed with the seed. All bits of
 * the result are usable. The seed is drawn per table, so that a stranger who chooses
 * the ids cannot choose the collisions. Values differ between machines: never stored. */
#ifndef LP_HASH_H
#define LP_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LP_HASH_A UINT64_C(0x9e3779b97f4a7c15)
#define LP_HASH_B UINT64_C(0xd6e8feb86659fd93)
#define LP_HASH_C UINT64_C(0xa0761d6478bd642f)

/* The halves of the 128-bit product, folded. */
static inline uint64_t lp_hash_mix(uint64_t a, uint64_t b)
{
#ifdef __SIZEOF_INT128__
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t low = (a & UINT32_MAX) * (b & UINT32_MAX);
    uint64_t left = (a >> 32) * (b & UINT32_MAX), right = (a & UINT32_MAX) * (b >> 32);
    uint64_t middle = (low >> 32) + (left & UINT32_MAX) + (right & UINT32_MAX);
    uint64_t high = (a >> 32) * (b >> 32) + (left >> 32) + (right >> 32) + (middle >> 32);
    return ((middle << 32) | (low & UINT32_MAX)) ^ high;
#endif
}

static inline uint64_t lp_hash_word(const unsigned char *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* Up to 8 bytes as a word. Different inputs of one length give different words. */
static inline uint64_t lp_hash_short(const unsigned char *p, size_t n)
{
    if (n >= 4) {
        uint32_t first, last;
        memcpy(&first, p, sizeof first);
        memcpy(&last, p + n - 4, sizeof last);
        return ((uint64_t)first << 32) | last;
    }
    return n == 0 ? 0 : ((uint64_t)p[0] << 16) | ((uint64_t)p[n / 2] << 8) | p[n - 1];
}

static inline uint64_t lp_hash(const void *bytes, size_t length, uint64_t seed)
{
    const unsigned char *p = bytes;
    size_t left = length;
    /* Both factors of every product hold the seed: no chosen input makes one of them 0. */
    uint64_t h = seed ^ LP_HASH_A, key = seed ^ LP_HASH_B;
    for (; left > 16; left -= 16, p += 16)
        h = lp_hash_mix(lp_hash_word(p) ^ key, lp_hash_word(p + 8) ^ h);
    uint64_t a = left >= 8 ? lp_hash_word(p) : lp_hash_short(p, left);
    uint64_t b = left >= 8 ? lp_hash_word(p + left - 8) : 0;
    h = lp_hash_mix(a ^ key, b ^ h);
    return lp_hash_mix(h ^ LP_HASH_C, (uint64_t)length ^ seed ^ LP_HASH_A);
}

#endif
