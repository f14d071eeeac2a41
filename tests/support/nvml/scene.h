/* The scene: a file of lines QUESTION=ANSWER, which is read again when it is replaced. */
#pragma once
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_LINES = 8192, LENGTH = 512 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *text, *lines[MOST_LINES];
static int line_count;
static struct stat seen;

static int is_same(const struct stat *now) {
    return now->st_ino == seen.st_ino && now->st_mtim.tv_sec == seen.st_mtim.tv_sec
        && now->st_mtim.tv_nsec == seen.st_mtim.tv_nsec;
}

static int compare_lines(const void *first, const void *second) {
    return strcmp(*(char *const *)first, *(char *const *)second);
}

/* Lines are sorted, and each has a NUL in place of its "=". */
static void read_scene(void) {
    const char *path = getenv("NVML_SCENE");
    struct stat now;
    FILE *file;
    if (path == NULL || stat(path, &now) || is_same(&now) || !(file = fopen(path, "r"))) return;
    free(text);
    text = calloc(1, now.st_size + 1);
    text[fread(text, 1, now.st_size, file)] = '\0';
    fclose(file);
    line_count = 0;
    char *rest, *line = strtok_r(text, "\n", &rest);
    for (; line != NULL && line_count < MOST_LINES; line = strtok_r(NULL, "\n", &rest)) {
        *strchr(line, '=') = '\0';
        lines[line_count++] = line;
    }
    qsort(lines, line_count, sizeof *lines, compare_lines);
    seen = now;
}

static int find(const char *question, char *into) {
    pthread_mutex_lock(&lock);
    read_scene();
    char **line = bsearch(&question, lines, line_count, sizeof *lines, compare_lines);
    if (line != NULL) snprintf(into, LENGTH, "%s", *line + strlen(*line) + 1);
    pthread_mutex_unlock(&lock);
    return line != NULL;
}
