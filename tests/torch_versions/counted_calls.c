/* Counts the calls that would start CUDA or CUPTI in a process: preloaded, it is asked in their place, writes
   "process name" to the file that COUNTED_CALLS names, and passes the call on.

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

COUNT(cudaGetDeviceCount)
COUNT(cuInit)
COUNT(hipGetDeviceCount)
COUNT(hipInit)
COUNT(cuptiSubscribe)
COUNT(cuptiSubscribe_v2)
COUNT(cuptiActivityEnable)
COUNT(cuptiActivityRegisterCallbacks)
