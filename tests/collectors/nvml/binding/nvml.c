/* A libnvidia-ml.so.1 of two healthy GPUs, for pynvml. Of GPU 0 each answer is what the environment says instead:
   NVML_POWER=4294967295 is its power in mW; NVML_NAME is text in any bytes. Structures are as in nvml.h. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
typedef int64_t Device; /* A handle: 1 for GPU 0. */
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned long long total, free, used; } Window;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned pid; unsigned long long time_us; unsigned sm, memory, encoder, decoder; } Share;
typedef struct {
    char short_address[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char address[32];
} Pci;
typedef struct {
    uint32_t field, scope;
    int64_t time_us, latency_us;
    unsigned type, result;
    union { double real; unsigned small; unsigned long long whole; } value;
} Field;

static unsigned long long number(Device gpu, const char *name, unsigned long long healthy) {
    const char *said = gpu == 1 ? getenv(name) : NULL;
    return said == NULL ? healthy : strtoull(said, NULL, 10);
}
static int text(Device gpu, const char *name, const char *healthy, char *into, unsigned length) {
    const char *said = gpu == 1 ? getenv(name) : NULL;
    snprintf(into, length, "%s", said == NULL ? healthy : said);
    return SUCCESS;
}
static int answer(Device gpu, const char *name, unsigned healthy, unsigned *into) {
    *into = (unsigned)number(gpu, name, healthy);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *into, unsigned length) { return text(1, "NVML_DRIVER", "580.95.05", into, length); }
int nvmlSystemGetCudaDriverVersion_v2(unsigned *into) { return answer(1, "NVML_CUDA", 13000, into); }
int nvmlSystemGetCudaDriverVersion(unsigned *into) { return answer(1, "NVML_CUDA", 13000, into); }
int nvmlDeviceGetCount_v2(unsigned *into) { return answer(1, "NVML_COUNT", 2, into); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *into) { *into = index + 1; return index < 2 ? SUCCESS : NOT_FOUND; }
int nvmlDeviceGetIndex(Device gpu, unsigned *into) { *into = (unsigned)gpu - 1; return SUCCESS; }
int nvmlDeviceGetUUID(Device gpu, char *into, unsigned length) {
    return text(gpu, "NVML_UUID", gpu == 1 ? "GPU-0abc" : "GPU-1abc", into, length);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device *into) {
    char known[96];
    for (*into = 1; *into <= 2; ++*into) {
        nvmlDeviceGetUUID(*into, known, sizeof known);
        if (!strcmp(known, uuid)) return SUCCESS;
    }
    return NOT_FOUND;
}
int nvmlDeviceGetName(Device gpu, char *into, unsigned length) { return text(gpu, "NVML_NAME", "NVIDIA H200", into, length); }
int nvmlDeviceGetSerial(Device gpu, char *into, unsigned length) { return text(gpu, "NVML_SERIAL", "1650", into, length); }
int nvmlDeviceGetVbiosVersion(Device gpu, char *into, unsigned length) { return text(gpu, "NVML_VBIOS", "96.00", into, length); }
int nvmlDeviceGetNumaNodeId(Device gpu, unsigned *into) { return answer(gpu, "NVML_NUMA", 0, into); }
int nvmlDeviceGetPciInfo_v3(Device gpu, Pci *into) {
    memset(into, 0, sizeof *into);
    return text(gpu, "NVML_PCI", gpu == 1 ? "00000000:10:00.0" : "00000000:21:00.0", into->address, sizeof into->address);
}
int nvmlDeviceGetPersistenceMode(Device gpu, unsigned *into) { return answer(gpu, "NVML_PERSISTENCE", 1, into); }
int nvmlDeviceGetMigMode(Device gpu, unsigned *now, unsigned *next) {
    *next = 0;
    return answer(gpu, "NVML_MIG", 0, now);
}
int nvmlDeviceGetNvLinkState(Device gpu, unsigned link, unsigned *into) {
    return link < 18 ? answer(gpu, "NVML_NVLINK", 1, into) : NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkVersion(Device gpu, unsigned link, unsigned *into) { return answer(gpu, "NVML_NVLINK_VERSION", 7, into); }
int nvmlDeviceGetCurrentClocksEventReasons(Device gpu, unsigned long long *into) {
    *into = number(gpu, "NVML_REASONS", 0);
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(Device gpu, Utilization *into) {
    answer(gpu, "NVML_UTILIZATION", 97, &into->gpu);
    return answer(gpu, "NVML_MEMORY_UTILIZATION", 43, &into->memory);
}
int nvmlDeviceGetEncoderUtilization(Device gpu, unsigned *into, unsigned *period_us) {
    *period_us = 167000;
    return answer(gpu, "NVML_ENCODER", 0, into);
}
int nvmlDeviceGetMemoryInfo(Device gpu, Memory *into) {
    into->total = number(gpu, "NVML_TOTAL", 100ULL << 30);
    into->free = number(gpu, "NVML_FREE", 90ULL << 30);
    into->used = into->total - into->free;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(Device gpu, Memory2 *into) {
    into->total = number(gpu, "NVML_TOTAL", 100ULL << 30);
    into->free = number(gpu, "NVML_FREE", 90ULL << 30);
    into->reserved = 1ULL << 30;
    into->used = into->total - into->free - into->reserved;
    return SUCCESS;
}
int nvmlDeviceGetBAR1MemoryInfo(Device gpu, Window *into) {
    into->total = number(gpu, "NVML_BAR1", 128ULL << 30);
    into->used = 2 << 20;
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(Device gpu, unsigned *into) { return answer(gpu, "NVML_POWER", 612345, into); }
int nvmlDeviceGetEnforcedPowerLimit(Device gpu, unsigned *into) { return answer(gpu, "NVML_POWER_LIMIT", 700000, into); }
int nvmlDeviceGetTemperature(Device gpu, int sensor, unsigned *into) { return answer(gpu, "NVML_TEMPERATURE", 55, into); }
int nvmlDeviceGetClockInfo(Device gpu, int clock, unsigned *into) { return answer(gpu, "NVML_CLOCK", 1755, into); }
int nvmlDeviceGetMaxClockInfo(Device gpu, int clock, unsigned *into) { return answer(gpu, "NVML_MAX_CLOCK", 1980, into); }
int nvmlDeviceGetCurrPcieLinkGeneration(Device gpu, unsigned *into) { return answer(gpu, "NVML_PCIE_NOW", 5, into); }
int nvmlDeviceGetCurrPcieLinkWidth(Device gpu, unsigned *into) { return answer(gpu, "NVML_LANES", 16, into); }
int nvmlDeviceGetMaxPcieLinkGeneration(Device gpu, unsigned *into) { return answer(gpu, "NVML_PCIE", 5, into); }
int nvmlDeviceGetMaxPcieLinkWidth(Device gpu, unsigned *into) { return answer(gpu, "NVML_LANES", 16, into); }
int nvmlDeviceGetTopologyCommonAncestor(Device gpu, Device other, unsigned *into) { return answer(gpu, "NVML_LEVEL", 50, into); }
int nvmlDeviceGetComputeRunningProcesses_v3(Device gpu, unsigned *count, Process *into) {
    unsigned room = *count;
    *count = 1;
    if (into == NULL || room == 0) return INSUFFICIENT_SIZE;
    *into = (Process){.pid = (unsigned)number(gpu, "NVML_PID", 42), .used = number(gpu, "NVML_PROCESS", 1 << 30)};
    return SUCCESS;
}
int nvmlDeviceGetProcessUtilization(Device gpu, Share *into, unsigned *count, unsigned long long newer_than) {
    struct timespec now;
    unsigned room = *count;
    *count = 1;
    if (into == NULL || room == 0) return INSUFFICIENT_SIZE;
    clock_gettime(CLOCK_REALTIME, &now);
    *into = (Share){.pid = (unsigned)number(gpu, "NVML_PID", 42), .time_us = now.tv_sec * 1000000ULL + now.tv_nsec / 1000};
    return answer(gpu, "NVML_SHARE", 61, &into->sm);
}
static unsigned long long healthy_field(unsigned field) {
    switch (field) {
    case 82: return 60; /* Degrees of the memory. */
    case 83: return 5000000; /* mJ since the driver was loaded. */
    case 186: return 640000; /* mW now. */
    case 187: return 200000; /* The least and the most limit, mW. */
    case 188: return 700000;
    default: return 1;
    }
}
int nvmlDeviceGetFieldValues(Device gpu, int count, Field *fields) {
    for (Field *one = fields; one < fields + count; one++) {
        char name[32];
        snprintf(name, sizeof name, "NVML_FIELD_%u", one->field);
        one->latency_us = 20;
        one->result = one->field >= 163 && one->field <= 190 && healthy_field(one->field) == 1 ? NOT_SUPPORTED : SUCCESS;
        one->type = 3; /* unsigned long long */
        one->value.whole = number(gpu, name, healthy_field(one->field));
    }
    return SUCCESS;
}
