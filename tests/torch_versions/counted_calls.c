/* Counts the calls that would start CUDA or CUPTI in a process, and those whose order matters in a rank: preloaded, it is
   asked in their place, writes "process name" to the file that COUNTED_CALLS names, and passes the call on.

   It sees calls between libraries, and none that a library makes through a pointer from dlsym; those lead into the
   driver, libcuda.so.1, which the memory map of a process shows. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void count(const char *name) {
    char line[128];
    const char *path = getenv("COUNTED_CALLS");
    int length = snprintf(line, sizeof line, "%d %s\n", (int)getpid(), name);
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (file < 0 || write(file, line, length) != length)
        abort(); /* A count that is lost would read as none. */
    close(file);
}

/* Five arguments in registers are more than any of them takes, and all of them give an int. */
#define COUNT(name)                                                                                         \
    int name(void *a, void *b, void *c, void *d, void *e) {                                                 \
        int (*next)(void *, void *, void *, void *, void *) = dlsym(RTLD_NEXT, #name);                      \
        count(#name);                                                                                       \
        return next ? next(a, b, c, d, e) : 999;                                                            \
    }

/* NCCL's id is a structure of 128 bytes, which comes by the stack. */
typedef struct {
    char bytes[128];
} Id;

int ncclCommInitRankConfig(void *made, int ranks, Id id, int rank, void *config) {
    int (*next)(void *, int, Id, int, void *) = dlsym(RTLD_NEXT, "ncclCommInitRankConfig");
    count("ncclCommInitRankConfig");
    return next ? next(made, ranks, id, rank, config) : 999;
}

/* A rank that is in no part of a split gives a negative colour, and gets no communicator. */
int ncclCommSplit(void *of, int color, int key, void *made, void *config) {
    int (*next)(void *, int, int, void *, void *) = dlsym(RTLD_NEXT, "ncclCommSplit");
    if (color >= 0)
        count("ncclCommSplit");
    return next ? next(of, color, key, made, config) : 999;
}

COUNT(cudaSetDevice)
COUNT(cudaMalloc)
COUNT(cudaDeviceSynchronize)
COUNT(ncclCommDestroy)
COUNT(ncclCommAbort)
COUNT(cudaGetDeviceCount)
COUNT(cuInit)
COUNT(hipGetDeviceCount)
COUNT(hipInit)
COUNT(cuptiSubscribe)
COUNT(cuptiSubscribe_v2)
COUNT(cuptiActivityEnable)
COUNT(cuptiActivityRegisterCallbacks)
