/* A set of distinct texts, numbered in order of first appearance. Stores slices only; the texts are not copied. */
#ifndef INTERNED_H
#define INTERNED_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const uint8_t *begin;
    size_t length;
} Slice;

typedef struct {
    Slice *texts;
    uint64_t *hashes;
    int32_t *slots; /* By hash: the number of a text, or -1 for a free slot. */
    int32_t count;
    int32_t room; /* Number of slots, a power of two; there is room for half as many texts. */
} Interned;

static inline bool is_same(Slice first, Slice second)
{
    return first.length == second.length && !memcmp(first.begin, second.begin, first.length);
}

/* Mixes in words of eight bytes, each by a multiplication and a shift of the high half into the low one. */
static inline uint64_t hash_of(Slice text)
{
    const uint64_t odd = 0x9E3779B97F4A7C15u;
    uint64_t hash = text.length * odd, word;
    size_t at = 0;
    for (; at + 8 <= text.length; at += 8) {
        memcpy(&word, text.begin + at, 8);
        hash = (hash ^ word) * odd;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, text.begin + at, text.length - at);
    hash = (hash ^ word) * odd;
    return hash ^ (hash >> 32);
}

static inline int32_t *slot_of(Interned *all, Slice text, uint64_t hash)
{
    uint64_t slot = hash & (uint64_t)(all->room - 1);
    for (;; slot = (slot + 1) & (uint64_t)(all->room - 1)) {
        const int32_t number = all->slots[slot];
        if (number < 0 || (all->hashes[number] == hash && is_same(all->texts[number], text)))
            return &all->slots[slot];
    }
}

static bool make_room(Interned *all)
{
    if (all->room > INT32_MAX / 2)
        return false;
    const int32_t room = all->room ? 2 * all->room : 256;
    void *texts = realloc(all->texts, sizeof(Slice) * (size_t)(room / 2));
    if (texts)
        all->texts = texts;
    void *hashes = realloc(all->hashes, sizeof(uint64_t) * (size_t)(room / 2));
    if (hashes)
        all->hashes = hashes;
    int32_t *slots = malloc(sizeof(int32_t) * (size_t)room);
    if (!texts || !hashes || !slots) {
        free(slots);
        return false;
    }
    free(all->slots);
    all->slots = slots;
    all->room = room;
    memset(slots, 0xff, sizeof(int32_t) * (size_t)room);
    for (int32_t number = 0; number < all->count; number++)
        *slot_of(all, all->texts[number], all->hashes[number]) = number;
    return true;
}

/* Returns the text's number; -1 if memory is exhausted. */
static inline int32_t number_of(Interned *all, Slice text)
{
    if (all->count >= all->room / 2 && !make_room(all))
        return -1;
    const uint64_t hash = hash_of(text);
    int32_t *slot = slot_of(all, text, hash);
    if (*slot < 0) {
        all->texts[all->count] = text;
        all->hashes[all->count] = hash;
        *slot = all->count++;
    }
    return *slot;
}

static void forget(Interned *all)
{
    free(all->texts);
    free(all->hashes);
    free(all->slots);
    *all = (Interned){0};
}

#endif
