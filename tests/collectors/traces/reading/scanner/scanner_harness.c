/* Feeds chunks to the scanner without Python, so that sanitizers see every byte that it touches.
 *
 * Standard input: of each chunk its length in eight bytes, and the chunk. Standard output: a line for each, 1 where the
 * scanner read it and 0 where it gave it up.
 */
#include <stdio.h>

#include "events.h"

#define SLICE(word) {(const uint8_t *)word, sizeof word - 1}

int main(void)
{
    const Slice kept[] = {SLICE("cpu_op"), SLICE("kernel"), SLICE("cuda_runtime")};
    const Slice not_kept[] = {SLICE("ac2g"), SLICE("python_function")};
    const Slice phases = SLICE("XiMstf");
    uint64_t length;
    while (fread(&length, sizeof length, 1, stdin) == 1) {
        /* Exactly as long as the chunk, so that one byte further is seen. */
        uint8_t *chunk = malloc(length ? length : 1);
        if (!chunk || fread(chunk, 1, length, stdin) != length)
            return 1;
        Scan scan = {.begin = chunk, .end = chunk + length, .kept = kept, .not_kept = not_kept, .phases = phases};
        scan.kept_count = sizeof kept / sizeof *kept;
        scan.not_kept_count = sizeof not_kept / sizeof *not_kept;
        puts(read_chunk(&scan) ? "1" : "0");
        throw_away(&scan);
        free(chunk);
    }
    return 0;
}
