/* The result for a chunk's events: rows of three kinds, and the texts that they share. */
#ifndef ROWS_H
#define ROWS_H

#include "interned.h"
#include "json_text.h"

/* An event. name, shape: numbers of texts, -1 for no shape. category: its number among those to keep. */
typedef struct {
    int64_t start_ns, duration_ns, process, thread, correlation;
    int32_t name, shape;
    int8_t category;
} Row;

typedef struct {
    int64_t time_ns;
    uint64_t address;
    int64_t change_bytes, allocated_bytes, thread;
    int16_t device;
} Allocation;

/* A row that describes a collective, and the place of its args in the chunk. */
typedef struct {
    int64_t row, begin, end;
} Said;

/* Rows of one kind, one after the other. */
typedef struct {
    char *bytes;
    size_t used, room;
} Pile;

typedef struct {
    Place begin, end;
    const Slice *kept, *not_kept;
    size_t kept_count, not_kept_count;
    Slice phases; /* The letters of known phases. */
    int64_t without_address; /* Changes of memory without an address. */
    Pile rows, allocations, said;
    Interned names, shapes, unknown, unread_phases;
} Scan;

static bool put(Pile *pile, const void *row, size_t size)
{
    if (pile->room - pile->used < size) {
        const size_t room = pile->room ? 2 * pile->room : 256 * size;
        char *bytes = realloc(pile->bytes, room);
        if (!bytes)
            return false;
        pile->bytes = bytes;
        pile->room = room;
    }
    memcpy(pile->bytes + pile->used, row, size);
    pile->used += size;
    return true;
}

static void throw_away(Scan *scan)
{
    free(scan->rows.bytes);
    free(scan->allocations.bytes);
    free(scan->said.bytes);
    forget(&scan->names);
    forget(&scan->shapes);
    forget(&scan->unknown);
    forget(&scan->unread_phases);
}

#endif
