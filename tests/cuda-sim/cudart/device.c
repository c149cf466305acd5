/* Runtime API: devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hardware.h"
#include "runtime.h"
#include "toolkit.h"

int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);

static bool exists(int device)
{
    return device >= 0 && device < sim_device_count();
}

/* CUDASIM_PRIVATE_TABLES=1: as NVIDIA's runtimes 11.8 to 13.0 get the context, by no exported function. */
static int primary_context(void **context, int device)
{
    const char *private = getenv("CUDASIM_PRIVATE_TABLES");
    if (!private || strcmp(private, "1") != 0)
        return cuDevicePrimaryCtxRetain(context, device);
    static const char identifier[16] = PRIVATE_TABLE;
    const struct private_table *table;
    int error = cuGetExportTable((const void **)&table, identifier);
    return error ? error : table->primary_context(context, device);
}

static int make_current(int device)
{
    void *context;
    int error = primary_context(&context, device);
    return error ? error : cuCtxSetCurrent(context);
}

void bind_context(void)
{
    static __thread bool bound;
    if (!bound) {
        bound = true;
        make_current(sim_current_device());
    }
}

EXPORT int cudaGetDeviceCount(int *count)
{
    *count = sim_device_count();
    return *count ? CUDA_OK : report(CUDA_NO_DEVICE);
}

EXPORT int cudaGetDevice(int *device)
{
    *device = sim_current_device();
    return CUDA_OK;
}

EXPORT int cudaSetDevice(int device)
{
    return report(make_current(device));
}

EXPORT int cudaDriverGetVersion(int *version)
{
    *version = CUDA_MAJOR * 1000 + 90;
    return CUDA_OK;
}

EXPORT int cudaRuntimeGetVersion(int *version)
{
    *version = RUNTIME_VERSION;
    return CUDA_OK;
}

EXPORT int cudaDeviceSynchronize(void)
{
    bind_context();
    return CUDA_OK;
}

EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    return report(cuDeviceGetAttribute(value, attribute, device));
}

EXPORT int cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (!exists(device) || !exists(peer))
        return report(CUDA_INVALID_DEVICE);
    *can = device != peer;
    return CUDA_OK;
}

EXPORT int cudaDeviceGetPCIBusId(char *text, int length, int device)
{
    if (!exists(device))
        return report(CUDA_INVALID_DEVICE);
    sim_pci_bus_id(text, (size_t)length, sim_gpu_of(device));
    return CUDA_OK;
}

EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = LEAST_STREAM_PRIORITY;
    if (greatest)
        *greatest = GREATEST_STREAM_PRIORITY;
    return CUDA_OK;
}

EXPORT int cudaGetDeviceProperties(struct device_properties *out, int device)
{
    if (!exists(device))
        return report(CUDA_INVALID_DEVICE);
    int capability = sim_compute_capability();
    *out = (struct device_properties){
        .total_memory = sim_capacity(device),
        .shared_per_block = SHARED_PER_BLOCK,
        .registers_per_block = REGISTERS,
        .warp_size = WARP_SIZE,
        .pitch = MAX_PITCH,
        .threads_per_block = MAX_THREADS_PER_BLOCK,
        .block_dimensions = { MAX_THREADS_PER_BLOCK, MAX_THREADS_PER_BLOCK, MAX_BLOCK_DEPTH },
        .grid_dimensions = { MAX_GRID_WIDTH, MAX_GRID_HEIGHT, MAX_GRID_HEIGHT },
#if CUDA_MAJOR < 13
        .clock_khz = CLOCK_KHZ,
        .memory_clock_khz = MEMORY_CLOCK_KHZ,
#endif
        .constant_memory = CONSTANT_MEMORY,
        .major = capability / 10,
        .minor = capability % 10,
        .texture_alignment = TEXTURE_ALIGNMENT,
        .texture_pitch_alignment = TEXTURE_PITCH_ALIGNMENT,
        .multiprocessors = MULTIPROCESSORS,
        .maps_host_memory = 1,
        .concurrent_kernels = 1,
        .pci_bus = sim_gpu_of(device) + 1,
        .async_engines = ASYNC_ENGINES,
        .unified_addressing = 1,
        .memory_bus_bits = MEMORY_BUS_BITS,
        .l2_cache = L2_CACHE_BYTES,
        .threads_per_multiprocessor = MAX_THREADS_PER_MULTIPROCESSOR,
        .stream_priorities = 1,
        .global_l1_cache = 1,
        .local_l1_cache = 1,
        .shared_per_multiprocessor = SHARED_PER_MULTIPROCESSOR,
        .registers_per_multiprocessor = REGISTERS,
        .managed_memory = 1,
        .cooperative_launch = 1,
        .shared_per_block_optin = SHARED_PER_BLOCK_OPTIN,
        .blocks_per_multiprocessor = MAX_BLOCKS_PER_MULTIPROCESSOR,
        .shared_reserved_per_block = SHARED_RESERVED_PER_BLOCK,
#if CUDA_MAJOR > 11
        .host_register = 1,
        .memory_pools = 1,
#endif
    };
    snprintf(out->name, sizeof out->name, "Simulated GPU");
    sim_uuid(out->uuid, sim_gpu_of(device));
    return CUDA_OK;
}

static int entry_point(const char *name, void **function, int version, unsigned long long flags,
                       int *status)
{
    int found;
    cuGetProcAddress_v2(name, function, version, flags, &found);
    if (status)
        *status = found;
    return CUDA_OK;
}

#if CUDA_MAJOR == 11
EXPORT int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags)
{
    int found;
    entry_point(name, function, RUNTIME_VERSION, flags, &found);
    return found == ENTRY_POINT_FOUND ? CUDA_OK : report(CUDA_NOT_FOUND);
}
#else
EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                            unsigned long long flags, int *status)
{
    return entry_point(name, function, (int)version, flags, status);
}

EXPORT int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                   int *status)
{
    return entry_point(name, function, RUNTIME_VERSION, flags, status);
}
#endif

SUCCEEDS(cudaDeviceEnablePeerAccess)
SUCCEEDS(cudaProfilerStart)
SUCCEEDS(cudaProfilerStop)
