/* Finds the ends of values in a JSON text, and reads plain numbers. Knows no event.
 *
 * A function takes the place of a value's first byte and returns the place after the value, or NULL if the value is not
 * of the kind that the function reads. The last byte of a text is ']': spaces, numbers and words end there at the
 * latest, so only strings, and code after a ']', must check for the end.
 */
#ifndef JSON_TEXT_H
#define JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef const uint8_t *Place;

enum { MOST_DIGITS = 18, DEEPEST = 64 };

static inline Place after_space(Place at)
{
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')
        at++;
    return at;
}

/* Returns the first byte of a string that ends it, or that only a decoder understands; `end` if there is none. */
static inline Place odd_byte(Place at, Place end)
{
    /* Eight bytes at a time: in `odd`, the highest bit of each odd byte is set. A borrow may also set it in bytes above
     * an odd byte, but never below the first one. */
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    while (end - at >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        const uint64_t quote = word ^ (ones * '"'), backslash = word ^ (ones * '\\');
        const uint64_t ends = ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash);
        const uint64_t odd = (ends | ((word - ones * ' ') & ~word) | word) & high;
        if (odd) {
#if defined(__GNUC__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            return at + (__builtin_ctzll(odd) >> 3);
#else
            break;
#endif
        }
        at += 8;
    }
    while (at < end && *at != '"' && *at != '\\' && *at >= ' ' && *at < 0x80)
        at++;
    return at;
}

/* Returns the closing quote of a string without escapes. at: after the opening quote. */
static inline Place closing_quote(Place at, Place end)
{
    at = odd_byte(at, end);
    return at < end && *at == '"' ? at : NULL;
}

static inline bool is_digit(uint8_t byte)
{
    return byte >= '0' && byte <= '9';
}

static inline bool is_hexadecimal(uint8_t byte)
{
    return is_digit(byte) || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}

/* at: the backslash. Refuses surrogates, which must come in pairs. */
static Place after_escape(Place at, Place end)
{
    if (end - at < 6)
        return NULL;
    if (at[1] != 'u')
        return memchr("\"\\/bfnrt", at[1], 8) ? at + 2 : NULL;
    for (int digit = 2; digit < 6; digit++)
        if (!is_hexadecimal(at[digit]))
            return NULL;
    const bool is_half = (at[2] == 'd' || at[2] == 'D') && at[3] > '7';
    return is_half ? NULL : at + 6;
}

/* Reads a string in ASCII. at: after the opening quote. */
static Place after_string(Place at, Place end)
{
    for (;;) {
        at = odd_byte(at, end);
        if (at >= end)
            return NULL;
        if (*at == '"')
            return at + 1;
        if (*at != '\\' || !(at = after_escape(at, end)))
            return NULL;
    }
}

static inline Place after_digits(Place at)
{
    while (is_digit(*at))
        at++;
    return at;
}

static Place after_number(Place at)
{
    at += *at == '-';
    if (!is_digit(*at))
        return NULL;
    at = *at == '0' ? at + 1 : after_digits(at);
    if (*at == '.') {
        if (!is_digit(*++at))
            return NULL;
        at = after_digits(at);
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        at += *at == '+' || *at == '-';
        if (!is_digit(*at))
            return NULL;
        at = after_digits(at);
    }
    return at;
}

static Place after_word(Place at, const char *word)
{
    while (*word)
        if (*at++ != (uint8_t)*word++)
            return NULL;
    return at;
}

static Place after_value(Place at, Place end, int depth);

/* Reads the members of an array or an object. at: after its opening bracket. */
static Place after_members(Place at, Place end, int depth, uint8_t closing)
{
    if (depth == DEEPEST)
        return NULL;
    at = after_space(at);
    if (*at != closing)
        for (;;) {
            if (closing == '}') {
                if (*at != '"' || !(at = after_string(at + 1, end)))
                    return NULL;
                at = after_space(at);
                if (*at != ':')
                    return NULL;
                at = after_space(at + 1);
            }
            if (!(at = after_value(at, end, depth + 1)))
                return NULL;
            at = after_space(at);
            if (*at == closing)
                break;
            if (*at != ',')
                return NULL;
            at = after_space(at + 1);
        }
    /* If it ends with the text's last byte, the text's own array is unclosed. */
    return ++at < end ? at : NULL;
}

static Place after_value(Place at, Place end, int depth)
{
    switch (*at) {
    case '"':
        return after_string(at + 1, end);
    case '[':
        return after_members(at + 1, end, depth, ']');
    case '{':
        return after_members(at + 1, end, depth, '}');
    case 't':
        return after_word(at, "true");
    case 'f':
        return after_word(at, "false");
    case 'n':
        return after_word(at, "null");
    default:
        return after_number(at);
    }
}

/* Reads digits with an optional sign: no leading zero, and few enough not to overflow. */
static inline Place read_digits(Place at, int64_t *number, bool *is_negative)
{
    *is_negative = *at == '-';
    at += *is_negative;
    const Place first = at;
    int64_t value = 0;
    while (is_digit(*at) && at - first < MOST_DIGITS)
        value = 10 * value + (*at++ - '0');
    if (at == first || is_digit(*at) || (*first == '0' && at - first > 1))
        return NULL;
    *number = value;
    return at;
}

static inline bool ends_a_number(uint8_t byte)
{
    return byte != '.' && byte != 'e' && byte != 'E';
}

static inline Place read_integer(Place at, int64_t *number)
{
    bool is_negative;
    if (!(at = read_digits(at, number, &is_negative)) || !ends_a_number(*at))
        return NULL;
    if (is_negative)
        *number = -*number;
    return at;
}

/* Reads microseconds with at most three decimals, as nanoseconds. */
static inline Place read_time(Place at, int64_t *time_ns)
{
    bool is_negative;
    int64_t whole_us;
    if (!(at = read_digits(at, &whole_us, &is_negative)) || whole_us > (INT64_MAX - 999) / 1000)
        return NULL;
    int64_t part_ns = 0;
    if (*at == '.') {
        int decimals = 0;
        for (at++; is_digit(*at) && decimals < 3; decimals++)
            part_ns = 10 * part_ns + (*at++ - '0');
        if (!decimals || is_digit(*at))
            return NULL;
        for (; decimals < 3; decimals++)
            part_ns *= 10;
    }
    if (!ends_a_number(*at))
        return NULL;
    *time_ns = 1000 * whole_us + part_ns;
    if (is_negative)
        *time_ns = -*time_ns;
    return at;
}

#endif
