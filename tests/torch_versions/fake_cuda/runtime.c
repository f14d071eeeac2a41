/* A CUDA machine without a GPU: preloaded, it answers for CUDA's runtime, cuBLAS and NCCL, and computes nothing.

   torch then takes the way of a GPU in its own code: operators choose their CUDA kernels, the caching allocator hands
   out memory, DistributedDataParallel reads addresses. Kernels, products and collectives return at once and leave memory
   as it is. Memory is address space, which costs nothing until it is touched: of copies those of at most COPIED bytes
   are made, because torch itself reads them (sizes that ranks compare, a flag of overflow); new memory holds zeros.

   FAKE_CUDA_BYTES is the memory of each GPU. A function that is not here is CUDA's own, which finds no driver, or a
   stand-in (stand_ins.py), which ends the process with its name. cuDNN says a version that has no attention, so that
   torch attends by its own flash kernel, and in fp32 by the efficient one.
   Prototypes and structures of the runtime are those of NVIDIA's header; of NCCL and cuBLAS they are declared here. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GPUS = 8, MOST_BLOCKS = 1 << 16, COPIED = 1 << 20 };

#define OUT(pointer, value) ((pointer) ? (void)(*(pointer) = (value)) : (void)0)
#define FINE(name, ...) \
    cudaError_t name(__VA_ARGS__) { return cudaSuccess; }

/* A call of a library whose arguments do not matter. */
#define TAKEN(name) \
    int name(void) { return 0; }

static __thread int current;
static int has_context[GPUS]; /* As the driver's own: from the first call on. */

static void *handle(void) { return calloc(1, 8); }

/* Memory. */

typedef struct {
    char *start;
    size_t bytes;
    int device; /* -1: of the host, pinned. */
} Block;

static Block blocks[MOST_BLOCKS];
static int count;
static size_t used[GPUS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t total_bytes(void) {
    const char *text = getenv("FAKE_CUDA_BYTES");
    return text ? strtoull(text, NULL, 10) : 85520809984ull;
}

static cudaError_t allocate(void **pointer, size_t bytes, int device) {
    pthread_mutex_lock(&lock);
    cudaError_t error = cudaErrorMemoryAllocation;
    if (count < MOST_BLOCKS && (device < 0 || used[device] + bytes <= total_bytes())) {
        char *start = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start != MAP_FAILED) {
            blocks[count++] = (Block){start, bytes, device};
            if (device >= 0)
                used[device] += bytes;
            *pointer = start;
            error = cudaSuccess;
        }
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static cudaError_t release(void *pointer) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++)
        if (blocks[i].start == pointer) {
            munmap(pointer, blocks[i].bytes ? blocks[i].bytes : 1);
            if (blocks[i].device >= 0)
                used[blocks[i].device] -= blocks[i].bytes;
            blocks[i] = blocks[--count];
            break;
        }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) { return allocate(pointer, bytes, current); }
cudaError_t cudaFree(void *pointer) { return release(pointer); }
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) { return allocate(pointer, bytes, -1); }
cudaError_t cudaFreeHost(void *pointer) { return release(pointer); }
FINE(cudaHostRegister, void *pointer, size_t bytes, unsigned flags)
FINE(cudaHostUnregister, void *pointer)

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *whole_bytes) {
    *whole_bytes = total_bytes();
    *free_bytes = *whole_bytes - used[current];
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    memset(attributes, 0, sizeof *attributes); /* Of memory that CUDA does not know: unregistered. */
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++)
        if ((char *)pointer >= blocks[i].start && (char *)pointer < blocks[i].start + blocks[i].bytes) {
            attributes->type = blocks[i].device < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
            attributes->device = blocks[i].device < 0 ? 0 : blocks[i].device;
            attributes->devicePointer = attributes->hostPointer = (void *)pointer;
        }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static cudaError_t copy(void *to, const void *from, size_t bytes) {
    if (bytes <= COPIED)
        memmove(to, from, bytes);
    return cudaSuccess;
}

static cudaError_t fill(void *to, int value, size_t bytes) {
    if (bytes <= COPIED)
        memset(to, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) { return copy(to, from, bytes); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return copy(to, from, bytes);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int device, const void *from, int peer, size_t bytes, cudaStream_t stream) {
    return copy(to, from, bytes);
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) { return fill(to, value, bytes); }
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) { return fill(to, value, bytes); }

/* Devices: eight of an H100's kind. */

cudaError_t cudaGetDeviceCount(int *number) { return *number = GPUS, cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { return *device = current, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= GPUS)
        return cudaErrorInvalidDevice;
    return current = device, has_context[device] = 1, cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *of, int device) {
    memset(of, 0, sizeof *of);
    strcpy(of->name, "NVIDIA H100 80GB HBM3");
    int process = getpid(); /* A process is a node: ranks that are alone in one do not share a GPU. */
    memcpy(of->uuid.bytes, &process, sizeof process);
    of->uuid.bytes[15] = (char)device;
    of->totalGlobalMem = total_bytes();
    of->sharedMemPerBlock = 49152, of->sharedMemPerBlockOptin = 232448, of->sharedMemPerMultiprocessor = 233472;
    of->regsPerBlock = of->regsPerMultiprocessor = 65536;
    of->warpSize = 32, of->multiProcessorCount = 132;
    of->maxThreadsPerBlock = 1024, of->maxThreadsPerMultiProcessor = 2048, of->maxBlocksPerMultiProcessor = 32;
    of->maxThreadsDim[0] = of->maxThreadsDim[1] = 1024, of->maxThreadsDim[2] = 64;
    of->maxGridSize[0] = 2147483647, of->maxGridSize[1] = of->maxGridSize[2] = 65535;
    of->major = 9, of->minor = 0;
    of->textureAlignment = 512, of->l2CacheSize = 52428800, of->unifiedAddressing = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp of;
    cudaGetDeviceProperties(&of, device);
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = of.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = of.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = of.multiProcessorCount; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)of.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)of.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)of.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = of.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxGridDimX: *value = of.maxGridSize[0]; break;
    case cudaDevAttrWarpSize: *value = of.warpSize; break;
    default: *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, (size_t)length, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *yes, int device, int peer) { return *yes = 1, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
FINE(cudaDeviceEnablePeerAccess, int peer, unsigned flags)
FINE(cudaDeviceSynchronize, void)
FINE(cudaGetLastError, void)
FINE(cudaPeekAtLastError, void)

/* The driver: torch looks for its library by name, which this one bears, and asks the runtime for its functions. */

int cuInit(unsigned flags) { return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
    return *flags = 0, *is_active = has_context[device], 0;
}
int cuCtxGetCurrent(void **context) { return *context = has_context, 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = has_context, 0; }
static int driver(void) { return 0; }

cudaError_t cudaGetDriverEntryPointByVersion(
    const char *name, void **function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    *function = (void *)driver;
    OUT(status, cudaDriverEntryPointSuccess);
    return cudaSuccess;
}

/* Streams, events, kernels. */

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return *stream = handle(), cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    return *stream = handle(), cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    OUT(least, 0);
    OUT(greatest, -5);
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { return *priority = 0, cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
    const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges, size_t *number) {
    *status = cudaStreamCaptureStatusNone;
    OUT(id, 0);
    return cudaSuccess;
}
FINE(cudaThreadExchangeStreamCaptureMode, enum cudaStreamCaptureMode *mode)
FINE(cudaStreamDestroy, cudaStream_t stream)
FINE(cudaStreamQuery, cudaStream_t stream)
FINE(cudaStreamSynchronize, cudaStream_t stream)
FINE(cudaStreamWaitEvent, cudaStream_t stream, cudaEvent_t event, unsigned flags)

cudaError_t cudaEventCreate(cudaEvent_t *event) { return *event = handle(), cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return *event = handle(), cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *elapsed_ms, cudaEvent_t start, cudaEvent_t end) { return *elapsed_ms = 1, cudaSuccess; }
FINE(cudaEventDestroy, cudaEvent_t event)
FINE(cudaEventQuery, cudaEvent_t event)
FINE(cudaEventRecord, cudaEvent_t event, cudaStream_t stream)
FINE(cudaEventRecordWithFlags, cudaEvent_t event, cudaStream_t stream, unsigned flags)
FINE(cudaEventSynchronize, cudaEvent_t event)

FINE(cudaLaunchKernel, const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
FINE(__cudaLaunchKernel, cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
FINE(cudaLaunchKernelExC, const cudaLaunchConfig_t *config, const void *function, void **arguments)
FINE(cudaFuncSetAttribute, const void *function, enum cudaFuncAttribute attribute, int value)
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) { return *kernel = (cudaKernel_t)function, cudaSuccess; }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *of, const void *function) {
    memset(of, 0, sizeof *of);
    of->maxThreadsPerBlock = 1024, of->numRegs = 32, of->ptxVersion = of->binaryVersion = 90;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *number, const void *function, int block, size_t shared, unsigned flags) {
    return *number = 2, cudaSuccess;
}

/* cuBLAS: makes handles, and takes every product. */

int cublasCreate_v2(void **cublas) { return *cublas = handle(), 0; }
int cublasGetMathMode(void *cublas, int *mode) { return *mode = 0, 0; }
int cublasGetPointerMode_v2(void *cublas, int *mode) { return *mode = 0, 0; }
TAKEN(cublasDestroy_v2)
TAKEN(cublasSetMathMode)
TAKEN(cublasSetPointerMode_v2)
TAKEN(cublasSetStream_v2)
TAKEN(cublasSetWorkspace_v2)
TAKEN(cublasSgemm_v2)
TAKEN(cublasDgemm_v2)
TAKEN(cublasGemmEx)
TAKEN(cublasSgemmStridedBatched)
TAKEN(cublasGemmStridedBatchedEx)

size_t cudnnGetVersion(void) { return 80900; }

/* NCCL: makes communicators that know their size, and takes every message. Ranks that do not run say what this one
   says: a small collective gives each rank's part the bytes of this one, and a small message holds ones, by which stages
   of a pipeline agree. */

typedef struct {
    int ranks, rank;
} Communicator;
typedef struct {
    char bytes[128];
} Id;

static const size_t element_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* By ncclDataType_t: int8, uint8, int32 ... */

static int communicator(Communicator **made, int ranks, int rank) {
    *made = malloc(sizeof(Communicator));
    **made = (Communicator){ranks, rank};
    return 0;
}

int ncclGetVersion(int *version) { return *version = 22809, 0; }
int ncclGetUniqueId(Id *id) { return memset(id, 1, sizeof *id), 0; }
int ncclCommInitRank(Communicator **made, int ranks, Id id, int rank) { return communicator(made, ranks, rank); }
int ncclCommInitRankConfig(Communicator **made, int ranks, Id id, int rank, void *config) {
    return communicator(made, ranks, rank);
}
int ncclCommSplit(Communicator *of, int color, int key, Communicator **made, void *config) {
    return communicator(made, of->ranks, key);
}
int ncclCommCount(Communicator *of, int *ranks) { return *ranks = of->ranks, 0; }
int ncclCommUserRank(Communicator *of, int *rank) { return *rank = of->rank, 0; }
int ncclCommRegister(Communicator *of, void *buffer, size_t bytes, void **registered) {
    return *registered = handle(), 0;
}
int ncclCommGetAsyncError(Communicator *of, int *error) { return *error = 0, 0; }
const char *ncclGetErrorString(int error) { return "an error of NCCL"; }
const char *ncclGetLastError(Communicator *of) { return ""; }

int ncclAllGather(const void *from, void *to, size_t elements, int type, Communicator *of, cudaStream_t stream) {
    size_t bytes = elements * element_bytes[type];
    for (int rank = 0; bytes * (size_t)of->ranks <= COPIED && rank < of->ranks; rank++)
        memmove((char *)to + bytes * (size_t)rank, from, bytes);
    return 0;
}
int ncclAllReduce(const void *from, void *to, size_t elements, int type, int operation, Communicator *of, cudaStream_t stream) {
    return (int)copy(to, from, elements * element_bytes[type]);
}
int ncclBroadcast(const void *from, void *to, size_t elements, int type, int root, Communicator *of, cudaStream_t stream) {
    return (int)copy(to, from, elements * element_bytes[type]);
}
int ncclRecv(void *to, size_t elements, int type, int peer, Communicator *of, cudaStream_t stream) {
    if (elements == 1)
        *(char *)to = 1; /* Of an integer, the lowest byte. */
    return 0;
}

TAKEN(ncclCommAbort)
TAKEN(ncclCommDeregister)
TAKEN(ncclCommDestroy)
TAKEN(ncclCommFinalize)
TAKEN(ncclGroupStart)
TAKEN(ncclGroupEnd)
TAKEN(ncclAlltoAll)
TAKEN(ncclBcast)
TAKEN(ncclReduce)
TAKEN(ncclReduceScatter)
TAKEN(ncclSend)
