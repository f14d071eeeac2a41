/* A libnvidia-ml.so.1 that reads every answer from a file, the scene, which scenes.py describes and writes.

A line of the scene is QUESTION=ANSWER or GPU.QUESTION=ANSWER, where QUESTION is the function's name after "nvmlDeviceGet"
or "nvml", with ".N" for a number in the call: "3.ClockInfo.1=1980". An answer is a text, a number, BASE+RATE (a counter
that grows by RATE a second) or !CODE (a refusal, by NVML's number). A question without a line is not supported.
Every question first reads the GPU's "All", and "Late_s" is the delay of each answer in seconds.
The file is read again when it is replaced, so that a scene can change while programs run.

Built with -DDRIVER=N, it lacks the functions that came after driver N. Source of those numbers: NVML's change log. */
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#ifdef NVIDIAS_HEADER
#include <nvml.h>
#else
#include "declarations.h"
#endif
#include "scene.h"
#include <time.h>

#ifndef DRIVER
#define DRIVER 580
#endif
enum { MOST_GPUS = 64, MOST_INSTANCES = 16 };
static const unsigned NO_INSTANCE = 0xFFFFFFFF, ALL_LINKS = 0xFFFFFFFF;

static int users; /* Calls of nvmlInit without their nvmlShutdown. */

/* Devices: 1 + the GPU's index, and for an instance of MIG also its place + 1 above those bits. */

static nvmlDevice_t device_of(long gpu, long place) { return (nvmlDevice_t)(gpu + 1 + (place + 1) * MOST_GPUS); }
static int gpu_of(nvmlDevice_t device) { return (int)(((long)device - 1) % MOST_GPUS); }
static int place_of(nvmlDevice_t device) { return (int)(((long)device - 1) / MOST_GPUS) - 1; }

/* The answer's text. An instance reads only lines with its own name, "0.Mig.1.UUID". */
static nvmlReturn_t answer_of(nvmlDevice_t device, const char *question, long number, char *into) {
    char names[4][128] = {0};
    if (users == 0) return NVML_ERROR_UNINITIALIZED;
    if (device != NULL && place_of(device) >= 0)
        snprintf(names[0], sizeof *names, "%d.Mig.%d.%s", gpu_of(device), place_of(device), question);
    else {
        if (device != NULL && number >= 0) snprintf(names[0], sizeof *names, "%d.%s.%ld", gpu_of(device), question, number);
        if (device != NULL) snprintf(names[1], sizeof *names, "%d.%s", gpu_of(device), question);
        if (number >= 0) snprintf(names[2], sizeof *names, "%s.%ld", question, number);
        snprintf(names[3], sizeof *names, "%s", question);
    }
    for (int place = 0; place < 4; place++)
        if (names[place][0] && find(names[place], into))
            return into[0] == '!' ? (nvmlReturn_t)strtol(into + 1, NULL, 10) : NVML_SUCCESS;
    return NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t reach(nvmlDevice_t device) {
    char said[LENGTH], question[32];
    nvmlReturn_t code;
    if (device == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlDevice_t whole = device_of(gpu_of(device), -1);
    snprintf(question, sizeof question, "Late_s");
    if (answer_of(whole, question, -1, said) == NVML_SUCCESS) {
        double seconds = strtod(said, NULL);
        nanosleep(&(struct timespec){(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)}, NULL);
    }
    code = answer_of(whole, "All", -1, said);
    return code == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : code;
}

static nvmlReturn_t ask_text(nvmlDevice_t device, const char *question, char *into, unsigned length) {
    char said[LENGTH];
    nvmlReturn_t code = answer_of(device, question, -1, said);
    if (code == NVML_SUCCESS) snprintf(into, length, "%s", said);
    return code;
}

static nvmlReturn_t ask(nvmlDevice_t device, const char *question, long number, unsigned long long *into) {
    char said[LENGTH], *rest;
    struct timespec now;
    nvmlReturn_t code = answer_of(device, question, number, said);
    if (code != NVML_SUCCESS) return code;
    *into = said[0] == '-' ? (unsigned long long)strtoll(said, &rest, 10) : strtoull(said, &rest, 10);
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (*rest == '+') *into += (unsigned long long)(strtod(rest + 1, NULL) * (now.tv_sec + now.tv_nsec / 1e9));
    return code;
}

static nvmlReturn_t ask_int(nvmlDevice_t device, const char *question, long number, void *into) {
    unsigned long long value = 0;
    nvmlReturn_t code = ask(device, question, number, &value);
    if (code == NVML_SUCCESS) *(unsigned *)into = (unsigned)value;
    return code;
}

#define REACH(device) do { nvmlReturn_t reached = reach(device); if (reached != NVML_SUCCESS) return reached; } while (0)
#define TEXT(name, question) nvmlReturn_t name(nvmlDevice_t device, char *into, unsigned length) \
    { REACH(device); return ask_text(device, question, into, length); }
#define NUMBER(name, type, question) nvmlReturn_t name(nvmlDevice_t device, type *into) \
    { REACH(device); return ask_int(device, question, -1, into); }
#define NUMBER_OF(name, kind, type, question) nvmlReturn_t name(nvmlDevice_t device, kind which, type *into) \
    { REACH(device); return ask_int(device, question, (long)which, into); }

/* The library and the node. */

static nvmlReturn_t init(void) {
    char said[LENGTH];
    pthread_mutex_lock(&lock);
    users++;
    pthread_mutex_unlock(&lock);
    nvmlReturn_t code = answer_of(NULL, "Init", -1, said);
    if (code == NVML_ERROR_NOT_SUPPORTED) return NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    users--;
    pthread_mutex_unlock(&lock);
    return code;
}
nvmlReturn_t nvmlInit(void) { return init(); }
nvmlReturn_t nvmlInit_v2(void) { return init(); }
nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return init(); }
nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int were = users;
    users -= users > 0;
    pthread_mutex_unlock(&lock);
    return were > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}
const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case NVML_SUCCESS: return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *into, unsigned length) {
    return ask_text(NULL, "SystemGetDriverVersion", into, length);
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char *into, unsigned length) {
    return ask_text(NULL, "SystemGetNVMLVersion", into, length);
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *into) { return ask_int(NULL, "SystemGetCudaDriverVersion", -1, into); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *into) { return ask_int(NULL, "SystemGetCudaDriverVersion", -1, into); }

/* GPUs and instances of MIG. */

static unsigned gpu_count(void) { unsigned count = 0; ask_int(NULL, "Count", -1, &count); return count; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *into) { return ask_int(NULL, "Count", -1, into); }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *into) {
    if (index >= gpu_count()) return NVML_ERROR_INVALID_ARGUMENT;
    *into = device_of(index, -1);
    return reach(*into);
}
static nvmlReturn_t handle_by(const char *question, const char *wanted, nvmlDevice_t *into) {
    char said[LENGTH];
    for (int gpu = 0; gpu < (int)gpu_count(); gpu++)
        for (int place = -1; place < MOST_INSTANCES; place++) {
            *into = device_of(gpu, place);
            if (answer_of(*into, question, -1, said) == NVML_SUCCESS && !strcmp(said, wanted)) return reach(*into);
        }
    return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *into) { return handle_by("UUID", uuid, into); }
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *into) {
    return handle_by("PciInfo", address, into);
}
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *into) {
    REACH(device);
    *into = gpu_of(device);
    return NVML_SUCCESS;
}
NUMBER_OF(nvmlDeviceGetNvLinkState, unsigned, nvmlEnableState_t, "NvLinkState")
NUMBER_OF(nvmlDeviceGetNvLinkVersion, unsigned, unsigned, "NvLinkVersion")
TEXT(nvmlDeviceGetName, "Name")
TEXT(nvmlDeviceGetUUID, "UUID")
TEXT(nvmlDeviceGetSerial, "Serial")
TEXT(nvmlDeviceGetVbiosVersion, "VbiosVersion")
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *into) {
    REACH(device);
    memset(into, 0, sizeof *into);
    nvmlReturn_t code = ask_text(device, "PciInfo", into->busId, sizeof into->busId);
    if (code == NVML_SUCCESS) {
        sscanf(into->busId, "%x:%x:%x", &into->domain, &into->bus, &into->device);
        snprintf(into->busIdLegacy, sizeof into->busIdLegacy, "%.15s", strlen(into->busId) > 4 ? into->busId + 4 : "");
    }
    return code;
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *now, unsigned *pending) {
    REACH(device);
    nvmlReturn_t code = ask_int(device, "MigMode", -1, now);
    *pending = *now;
    return code;
}
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, "MaxMigDeviceCount")
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned place, nvmlDevice_t *into) {
    char said[LENGTH];
    REACH(device);
    *into = device_of(gpu_of(device), place);
    return answer_of(*into, "UUID", -1, said) == NVML_SUCCESS ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *into) {
    if (place_of(device) < 0) return NVML_ERROR_INVALID_ARGUMENT;
    *into = device_of(gpu_of(device), -1);
    return reach(*into);
}
NUMBER(nvmlDeviceGetGpuInstanceId, unsigned, "GpuInstanceId")
NUMBER(nvmlDeviceGetComputeInstanceId, unsigned, "ComputeInstanceId")

/* Where a GPU is: NUMA nodes, CPUs and other GPUs. A set is written as "0-31,64-95". */

static nvmlReturn_t ask_set(nvmlDevice_t device, const char *question, unsigned words, unsigned long *into) {
    char said[LENGTH];
    const unsigned bits = 8 * sizeof *into;
    nvmlReturn_t code = answer_of(device, question, -1, said);
    if (code != NVML_SUCCESS) return code;
    memset(into, 0, words * sizeof *into);
    for (char *rest, *part = strtok_r(said, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest)) {
        char *dash = strchr(part, '-');
        unsigned last = (unsigned)strtoul(dash == NULL ? part : dash + 1, NULL, 10);
        for (unsigned bit = (unsigned)strtoul(part, NULL, 10); bit <= last; bit++) {
            if (bit / bits >= words) return NVML_ERROR_INSUFFICIENT_SIZE;
            into[bit / bits] |= 1UL << bit % bits;
        }
    }
    return code;
}
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *into) {
    REACH(device);
    return ask_set(device, "CpuAffinity", words, into);
}
nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(
    nvmlDevice_t device, unsigned words, unsigned long *into, nvmlAffinityScope_t scope
) {
    REACH(device);
    (void)scope;
    return ask_set(device, "CpuAffinity", words, into);
}
nvmlReturn_t nvmlDeviceGetMemoryAffinity(
    nvmlDevice_t device, unsigned words, unsigned long *into, nvmlAffinityScope_t scope
) {
    REACH(device);
    (void)scope;
    return ask_set(device, "MemoryAffinity", words, into);
}
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuTopologyLevel_t *into) {
    REACH(device);
    return ask_int(device, "TopologyCommonAncestor", gpu_of(other), into);
}
nvmlReturn_t nvmlDeviceGetP2PStatus(
    nvmlDevice_t device, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t capability, nvmlGpuP2PStatus_t *into
) {
    REACH(device);
    (void)capability;
    return ask_int(device, "P2PStatus", gpu_of(other), into);
}

/* Settings, sensors and counters with a function of their own. */

NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, "PersistenceMode")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "MaxPcieLinkGeneration")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "MaxPcieLinkWidth")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "CurrPcieLinkGeneration")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "CurrPcieLinkWidth")
NUMBER(nvmlDeviceGetPowerUsage, unsigned, "PowerUsage")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "EnforcedPowerLimit")
NUMBER_OF(nvmlDeviceGetTemperature, nvmlTemperatureSensors_t, unsigned, "Temperature")
NUMBER_OF(nvmlDeviceGetClockInfo, nvmlClockType_t, unsigned, "ClockInfo")
NUMBER_OF(nvmlDeviceGetMaxClockInfo, nvmlClockType_t, unsigned, "MaxClockInfo")
nvmlReturn_t nvmlDeviceGetTotalEccErrors(
    nvmlDevice_t device, nvmlMemoryErrorType_t kind, nvmlEccCounterType_t counter, unsigned long long *into
) {
    REACH(device);
    (void)counter;
    return ask(device, "TotalEccErrors", (long)kind, into);
}
nvmlReturn_t nvmlDeviceGetRemappedRows(
    nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed
) {
    REACH(device);
    unsigned *into[] = {corrected, uncorrected, pending, failed};
    nvmlReturn_t code = NVML_SUCCESS;
    for (int place = 0; place < 4 && code == NVML_SUCCESS; place++)
        code = ask_int(device, "RemappedRows", place, into[place]);
    return code;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *into) {
    REACH(device);
    nvmlReturn_t code = ask_int(device, "UtilizationRates", 0, &into->gpu);
    return code == NVML_SUCCESS ? ask_int(device, "UtilizationRates", 1, &into->memory) : code;
}
nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *into, unsigned *period_us) {
    REACH(device);
    *period_us = 167000;
    return ask_int(device, "EncoderUtilization", -1, into);
}
nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *into, unsigned *period_us) {
    REACH(device);
    *period_us = 167000;
    return ask_int(device, "DecoderUtilization", -1, into);
}

/* Memory: "Memory.total", "Memory.reserved" and "Memory.free" in bytes. */

static nvmlReturn_t ask_memory(nvmlDevice_t device, unsigned long long *total, unsigned long long *reserved, unsigned long long *free) {
    nvmlReturn_t code = ask(device, "Memory.total", -1, total);
    if (code == NVML_SUCCESS) code = ask(device, "Memory.reserved", -1, reserved);
    return code == NVML_SUCCESS ? ask(device, "Memory.free", -1, free) : code;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *into) {
    unsigned long long reserved;
    REACH(device);
    nvmlReturn_t code = ask_memory(device, &into->total, &reserved, &into->free);
    if (code == NVML_SUCCESS) into->used = into->total - into->free; /* Includes the reserved memory. */
    return code;
}
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *into) {
    REACH(device);
    nvmlReturn_t code = ask(device, "BAR1Memory.total", -1, &into->bar1Total);
    if (code == NVML_SUCCESS) code = ask(device, "BAR1Memory.used", -1, &into->bar1Used);
    into->bar1Free = into->bar1Total - into->bar1Used;
    return code;
}

/* Fields, by number, with ".LINK" for a link or ".all" for all links. */

static nvmlReturn_t ask_field(nvmlDevice_t device, nvmlFieldValue_t *field) {
    char question[64];
    unsigned long long value = 0;
    unsigned below = 0;
    ask_int(device, "FieldsBelow", -1, &below);
    if (below != 0 && field->fieldId >= below) return NVML_ERROR_INVALID_ARGUMENT;
    if (field->scopeId == ALL_LINKS) snprintf(question, sizeof question, "Field.%u.all", field->fieldId);
    else snprintf(question, sizeof question, "Field.%u", field->fieldId);
    nvmlReturn_t code = ask(device, question, field->scopeId == ALL_LINKS ? -1 : (long)field->scopeId, &value);
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    field->value.ullVal = value;
    return code;
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields) {
    REACH(device);
    for (nvmlFieldValue_t *field = fields; field < fields + count; field++) {
        field->timestamp = time(NULL) * 1000000LL;
        field->latencyUsec = 20;
        field->nvmlReturn = ask_field(device, field);
    }
    return NVML_SUCCESS;
}

/* Processes: "PID:BYTES", or "PID:" if the driver does not report the bytes; shares of the SMs: "PID:PERCENT". */

typedef struct { unsigned pid; unsigned long long number; } Pair;
enum { MOST_PAIRS = 128 };

static nvmlReturn_t ask_pairs(nvmlDevice_t device, const char *question, Pair *into, unsigned *count) {
    char said[LENGTH], *rest;
    nvmlReturn_t code = answer_of(device, question, -1, said);
    *count = 0;
    if (code != NVML_SUCCESS) return code;
    for (char *part = strtok_r(said, ",", &rest); part != NULL && *count < MOST_PAIRS; part = strtok_r(NULL, ",", &rest)) {
        char *number = NULL;
        into[*count].pid = (unsigned)strtoul(part, &number, 10);
        into[(*count)++].number = number[0] == ':' && number[1] ? strtoull(number + 1, NULL, 10) : ~0ULL;
    }
    return code;
}
nvmlReturn_t nvmlDeviceGetProcessUtilization(
    nvmlDevice_t device, nvmlProcessUtilizationSample_t *into, unsigned *count, unsigned long long newer_than
) {
    Pair pairs[MOST_PAIRS];
    struct timespec now;
    unsigned room = *count;
    REACH(device);
    (void)newer_than;
    nvmlReturn_t code = ask_pairs(device, "ProcessUtilization", pairs, count);
    if (code != NVML_SUCCESS) return code;
    if (*count == 0) return NVML_ERROR_NOT_FOUND;
    if (into == NULL || room < *count) return NVML_ERROR_INSUFFICIENT_SIZE;
    clock_gettime(CLOCK_REALTIME, &now);
    for (unsigned place = 0; place < *count; place++)
        into[place] = (nvmlProcessUtilizationSample_t){
            .pid = pairs[place].pid,
            .timeStamp = now.tv_sec * 1000000ULL + now.tv_nsec / 1000,
            .smUtil = (unsigned)pairs[place].number,
        };
    return code;
}

/* Events: "KIND:DATA" or "KIND:DATA:GPU_INSTANCE:COMPUTE_INSTANCE", each delivered once to a set that existed before. */

typedef struct { nvmlDevice_t device; int passed; } Events;
static int event_at(nvmlDevice_t device, int wanted, nvmlEventData_t *into) {
    char said[LENGTH], *rest;
    int place = 0;
    if (answer_of(device, "Events", -1, said) != NVML_SUCCESS) return 0;
    for (char *part = strtok_r(said, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest), place++)
        if (place == wanted && into != NULL) {
            *into = (nvmlEventData_t){.device = device, .gpuInstanceId = NO_INSTANCE, .computeInstanceId = NO_INSTANCE};
            sscanf(part, "%llu:%llu:%u:%u", &into->eventType, &into->eventData, &into->gpuInstanceId, &into->computeInstanceId);
            return 1;
        }
    return wanted < 0 ? place : 0;
}
nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *into) {
    REACH(device);
    return ask(device, "SupportedEventTypes", -1, into);
}
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *into) {
    *into = (nvmlEventSet_t)calloc(1, sizeof(Events));
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { free(set); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long kinds, nvmlEventSet_t set) {
    char said[LENGTH];
    REACH(device);
    (void)kinds;
    nvmlReturn_t code = answer_of(device, "RegisterEvents", -1, said);
    if (code != NVML_SUCCESS && code != NVML_ERROR_NOT_SUPPORTED) return code;
    *(Events *)set = (Events){.device = device, .passed = event_at(device, -1, NULL)};
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *into, unsigned timeout_ms) {
    Events *events = (Events *)set;
    char said[LENGTH];
    for (unsigned waited_ms = 0;; waited_ms += 50) {
        nvmlReturn_t code = events->device == NULL ? NVML_SUCCESS : answer_of(events->device, "All", -1, said);
        if (code != NVML_SUCCESS && code != NVML_ERROR_NOT_SUPPORTED) return code;
        if (events->device != NULL && event_at(events->device, events->passed, into)) { events->passed++; return NVML_SUCCESS; }
        if (waited_ms >= timeout_ms) return NVML_ERROR_TIMEOUT;
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
}

/* Functions that came with later drivers. */

#if DRIVER >= 510
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *into) {
    REACH(device);
    if (into->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t code = ask_memory(device, &into->total, &into->reserved, &into->free);
    if (code == NVML_SUCCESS) into->used = into->total - into->free - into->reserved;
    return code;
}
static nvmlReturn_t ask_processes(nvmlDevice_t device, const char *question, unsigned *count, nvmlProcessInfo_t *into) {
    Pair pairs[MOST_PAIRS];
    unsigned room = *count;
    REACH(device);
    nvmlReturn_t code = ask_pairs(device, question, pairs, count);
    if (code != NVML_SUCCESS || *count == 0) return code;
    if (into == NULL || room < *count) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned place = 0; place < *count; place++)
        into[place] = (nvmlProcessInfo_t){
            .pid = pairs[place].pid,
            .usedGpuMemory = pairs[place].number,
            .gpuInstanceId = NO_INSTANCE,
            .computeInstanceId = NO_INSTANCE,
        };
    return code;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *into) {
    return ask_processes(device, "ComputeRunningProcesses", count, into);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *into) {
    return ask_processes(device, "GraphicsRunningProcesses", count, into);
}
#endif

#if DRIVER >= 525
nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *into) {
    REACH(device);
    if (into->version != NVML_GPM_SUPPORT_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return ask_int(device, "GpmQueryDeviceSupport", -1, &into->isSupportedDevice);
}
nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *into) {
    *into = (nvmlGpmSample_t)calloc(1, sizeof(nvmlDevice_t));
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) { free(sample); return NVML_SUCCESS; }
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    char said[LENGTH];
    REACH(device);
    nvmlReturn_t code = answer_of(device, "GpmSampleGet", -1, said);
    *(nvmlDevice_t *)sample = device;
    return code == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : code;
}
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request) {
    if (request->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlDevice_t device = *(nvmlDevice_t *)request->sample2;
    REACH(device);
    for (unsigned place = 0; place < request->numMetrics; place++) {
        nvmlGpmMetric_t *metric = &request->metrics[place];
        char said[LENGTH], question[32];
        snprintf(question, sizeof question, "Gpm.%u", metric->metricId);
        metric->nvmlReturn = answer_of(device, question, -1, said);
        if (metric->nvmlReturn == NVML_SUCCESS) metric->value = strtod(said, NULL);
    }
    return NVML_SUCCESS;
}
#endif

#if DRIVER >= 535
NUMBER(nvmlDeviceGetNumaNodeId, unsigned, "NumaNodeId")
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *into) {
    REACH(device);
    return ask(device, "CurrentClocksEventReasons", -1, into);
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info) {
    nvmlGpuFabricInfo_v2_t *into = (nvmlGpuFabricInfo_v2_t *)info; /* The third version begins like the second. */
    unsigned state = 0;
    REACH(device);
    if (into->version != nvmlGpuFabricInfo_v2 && into->version != nvmlGpuFabricInfo_v3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t code = ask_int(device, "GpuFabricInfo.state", -1, &state);
    into->state = (unsigned char)state;
    into->status = NVML_SUCCESS;
    return code == NVML_SUCCESS ? ask_int(device, "GpuFabricInfo.clique", -1, &into->cliqueId) : code;
}
#endif

#if DRIVER >= 570
nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *into) {
    REACH(device);
    if (into->version != nvmlMarginTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return ask_int(device, "MarginTemperature", -1, &into->marginTemperature);
}
#endif
