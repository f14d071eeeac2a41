/* Reads the events of a chunk, one by one, into rows. The caller chooses the categories to keep.
 *
 * If a function is not sure of something, it returns NULL or false, and the whole chunk is given up.
 */
#ifndef EVENTS_H
#define EVENTS_H

#include "members.h"

/* Reads the key of a member. at: its quote. Returns the place of its value. */
static inline Place read_key(Place at, Place end, Slice *key)
{
    if (!(at = read_string(at, end, key)))
        return NULL;
    at = after_space(at);
    return *at == ':' ? after_space(at + 1) : NULL;
}

/* Returns the place after a member: the next key, or the closing bracket. */
static inline Place next_member(Place at)
{
    at = after_space(at);
    if (*at == ',') {
        at = after_space(at + 1);
        return *at == '"' ? at : NULL;
    }
    return *at == '}' ? at : NULL;
}

static Place read_args(Place at, Place end, Event *event)
{
    if (event->args || *at != '{')
        return NULL;
    event->args = at;
    Slice key;
    at = after_space(at + 1);
    while (at && *at != '}')
        if ((at = read_key(at, end, &key)) && (at = read_arg(at, end, key, event)))
            at = next_member(at);
    return at ? event->args_end = at + 1 : NULL;
}

static bool keep_row(Scan *scan, const Event *event)
{
    if (!event->name.begin || !event->has_time || !event->has_duration || !event->has_process || !event->has_thread)
        return false;
    if (event->has_odd_name || event->has_odd_place)
        return false;
    const int64_t number = (int64_t)(scan->rows.used / sizeof(Row));
    const Row row = {
        .start_ns = event->time_ns,
        .duration_ns = event->duration_ns,
        .process = event->process,
        .thread = event->thread,
        .correlation = event->correlation,
        .name = number_of(&scan->names, event->name),
        .shape = event->shape.begin ? number_of(&scan->shapes, event->shape) : -1,
        .category = (int8_t)event->kept,
    };
    if (row.name < 0 || (event->shape.begin && row.shape < 0))
        return false;
    if (!put(&scan->rows, &row, sizeof row))
        return false;
    if (!event->has_collective)
        return true;
    const Said said = {number, event->args - scan->begin, event->args_end - scan->begin};
    return put(&scan->said, &said, sizeof said);
}

static bool keep_allocation(Scan *scan, const Event *event)
{
    if (!event->has_address) {
        scan->without_address++;
        return true;
    }
    if (!event->has_time || !event->has_change || !event->has_device_type || !event->has_device)
        return false;
    if (event->device < INT16_MIN || event->device > INT16_MAX)
        return false;
    const Allocation allocation = {
        .time_ns = event->time_ns,
        .address = (uint64_t)event->address,
        .change_bytes = event->change_bytes,
        .allocated_bytes = event->allocated_bytes,
        .thread = event->thread,
        .device = event->device_type ? (int16_t)event->device : -1,
    };
    return put(&scan->allocations, &allocation, sizeof allocation);
}

/* Accepts a known phase, and lists any other in unread_phases. */
static inline bool pass_phase(Scan *scan, Slice phase)
{
    if (phase.length == 1 && memchr(scan->phases.begin, *phase.begin, scan->phases.length))
        return true;
    return number_of(&scan->unread_phases, phase) >= 0;
}

static bool keep(Scan *scan, const Event *event)
{
    if (IS(event->phase, "X")) {
        if (event->kept >= 0)
            return keep_row(scan, event);
        if (!event->category.begin)
            return false;
        return number_among(scan->not_kept, scan->not_kept_count, event->category) >= 0 ||
               number_of(&scan->unknown, event->category) >= 0;
    }
    if (IS(event->phase, "i") && (event->has_odd_name || IS(event->name, "[memory]")))
        return !event->has_odd_name && keep_allocation(scan, event);
    return event->phase.begin && pass_phase(scan, event->phase);
}

/* at: the event's opening bracket. */
static Place read_event(Place at, Scan *scan)
{
    if (*at != '{')
        return NULL;
    Event event = {.kept = -1, .thread = -1, .correlation = -1, .allocated_bytes = -1};
    Slice key;
    at = after_space(at + 1);
    while (at && *at != '}') {
        if (!(at = read_key(at, scan->end, &key)))
            return NULL;
        if (IS(key, "args"))
            at = read_args(at, scan->end, &event);
        else
            at = read_member(at, scan, key, &event);
        if (at)
            at = next_member(at);
    }
    return at && keep(scan, &event) ? at + 1 : NULL;
}

static bool is_space(uint8_t byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

/* Returns whether the chunk is an array of events and each is understood. */
static bool read_chunk(Scan *scan)
{
    while (scan->end > scan->begin && is_space(scan->end[-1]))
        scan->end--;
    if (scan->end - scan->begin < 2 || scan->end[-1] != ']')
        return false;
    Place at = after_space(scan->begin);
    if (*at != '[')
        return false;
    at = after_space(at + 1);
    if (*at == ']')
        return at + 1 == scan->end;
    while ((at = read_event(at, scan))) {
        at = after_space(at);
        if (*at == ']')
            return at + 1 == scan->end;
        if (*at != ',')
            return false;
        at = after_space(at + 1);
    }
    return false;
}

#endif
