/* Reads the members of an event and of its args into fields. Knows kineto's keys.
 *
 * The args of every event are checked, kept or not, since a decoder with typed structs requires the right types in all
 * of them. A function returns NULL if it is not sure of a value.
 */
#ifndef MEMBERS_H
#define MEMBERS_H

#include "rows.h"

typedef struct {
    Slice phase, category, name, shape;
    Place args, args_end;
    int64_t time_ns, duration_ns, process, thread, correlation;
    int64_t address, change_bytes, allocated_bytes, device_type, device;
    int kept; /* The category's number among those to keep, or -1. */
    bool has_time, has_duration, has_process, has_thread, has_odd_name, has_odd_place, has_collective;
    bool has_address, has_change, has_device_type, has_device;
} Event;

#define IS(slice, word) ((slice).length == sizeof(word) - 1 && !memcmp((slice).begin, word, sizeof(word) - 1))

static int number_among(const Slice *all, size_t count, Slice text)
{
    for (size_t number = 0; number < count; number++)
        if (is_same(all[number], text))
            return (int)number;
    return -1;
}

static inline Place read_string(Place at, Place end, Slice *text)
{
    if (*at != '"')
        return NULL;
    const Place begin = at + 1, quote = closing_quote(begin, end);
    if (!quote)
        return NULL;
    *text = (Slice){begin, (size_t)(quote - begin)};
    return quote + 1;
}

static inline Place pass_string(Place at, Place end)
{
    Slice text;
    return read_string(at, end, &text);
}

static inline Place pass_integer(Place at)
{
    int64_t number;
    return read_integer(at, &number);
}

static inline Place read_known_integer(Place at, int64_t *number, bool *is_known)
{
    *is_known = true;
    return read_integer(at, number);
}

static inline Place read_known_time(Place at, int64_t *time_ns, bool *is_known)
{
    *is_known = true;
    return read_time(at, time_ns);
}

/* Reads a process or a thread: a number, or a string, which becomes -1 and which no row may have. */
static inline Place read_place(Place at, Place end, Event *event, int64_t *number, bool *is_known)
{
    if (*at != '"')
        return read_known_integer(at, number, is_known);
    event->has_odd_place = *is_known = true;
    *number = -1;
    return after_string(at + 1, end);
}

/* Reads a name; only events that are not kept may have a name with escapes. */
static inline Place read_name(Place at, Place end, Event *event)
{
    if (event->name.begin || *at != '"')
        return NULL;
    const Place begin = at + 1, behind = after_string(begin, end);
    if (behind) {
        event->name = (Slice){begin, (size_t)(behind - 1 - begin)};
        event->has_odd_name = memchr(begin, '\\', event->name.length + 1) != NULL;
    }
    return behind;
}

/* Reads the sizes of an operator's inputs, as written. */
static inline Place read_shape(Place at, Place end, Slice *shape)
{
    const Place begin = at;
    if (*at != '[' || !(at = after_value(at, end, 0)))
        return NULL;
    *shape = (Slice){begin, (size_t)(at - begin)};
    return memchr(begin, '\\', shape->length) ? NULL : at;
}

static inline Place read_arg(Place at, Place end, Slice key, Event *event)
{
    switch (key.length) {
    case 3:
        if (IS(key, "Seq"))
            return pass_integer(at);
        break;
    case 4:
        if (IS(key, "Addr"))
            return read_known_integer(at, &event->address, &event->has_address);
        break;
    case 5:
        if (IS(key, "Bytes"))
            return read_known_integer(at, &event->change_bytes, &event->has_change);
        if (IS(key, "dtype"))
            return pass_string(at, end);
        break;
    case 8:
        if (IS(key, "Src Rank") || IS(key, "Dst Rank"))
            return pass_integer(at);
        break;
    case 9:
        if (IS(key, "Device Id"))
            return read_known_integer(at, &event->device, &event->has_device);
        break;
    case 10:
        if (IS(key, "Input Dims"))
            return read_shape(at, end, &event->shape);
        if (IS(key, "Input dims"))
            return NULL; /* Kineto's spelling in 2021. */
        if (IS(key, "Group size"))
            return pass_integer(at);
        break;
    case 11:
        if (IS(key, "External id"))
            return pass_integer(at);
        if (IS(key, "correlation"))
            return read_integer(at, &event->correlation);
        if (IS(key, "Device Type"))
            return read_known_integer(at, &event->device_type, &event->has_device_type);
        break;
    case 13:
        if (IS(key, "In msg nelems"))
            return pass_integer(at);
        break;
    case 14:
        if (IS(key, "Out msg nelems"))
            return pass_integer(at);
        break;
    case 15:
        if (IS(key, "Collective name")) {
            event->has_collective = true;
            return pass_string(at, end);
        }
        if (IS(key, "Total Allocated"))
            return read_integer(at, &event->allocated_bytes);
        break;
    case 18:
        if (IS(key, "Process Group Name"))
            return pass_string(at, end);
        break;
    case 19:
        if (IS(key, "Process Group Ranks"))
            return pass_string(at, end);
        break;
    }
    return after_value(at, end, 0);
}

static inline Place read_member(Place at, Scan *scan, Slice key, Event *event)
{
    const Place end = scan->end;
    switch (key.length) {
    case 2:
        if (IS(key, "ts"))
            return read_known_time(at, &event->time_ns, &event->has_time);
        if (IS(key, "ph"))
            return event->phase.begin ? NULL : read_string(at, end, &event->phase);
        break;
    case 3:
        if (IS(key, "dur"))
            return read_known_time(at, &event->duration_ns, &event->has_duration);
        if (IS(key, "pid"))
            return read_place(at, end, event, &event->process, &event->has_process);
        if (IS(key, "tid"))
            return read_place(at, end, event, &event->thread, &event->has_thread);
        if (IS(key, "cat")) {
            if (event->category.begin || !(at = read_string(at, end, &event->category)))
                return NULL;
            event->kept = number_among(scan->kept, scan->kept_count, event->category);
            return at;
        }
        break;
    case 4:
        if (IS(key, "name"))
            return read_name(at, end, event);
        break;
    }
    return after_value(at, end, 0);
}

#endif
