/* Driver API: devices and contexts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "hardware.h"
#include "state.h"

struct context {
    int device;
    bool retained;
};

enum { CONTEXT_DEPTH = 32 };

static struct context primary[MAX_DEVICES];
static __thread struct context *stack[CONTEXT_DEPTH];
static __thread int depth;

static struct context *top(void)
{
    return depth ? stack[depth - 1] : NULL;
}

static bool exists(int device)
{
    return device >= 0 && device < sim_device_count();
}

ENTRY(int, cuInit, unsigned)
{
    return sim_device_count() ? CUDA_OK : CUDA_NO_DEVICE;
}

ENTRY(int, cuDriverGetVersion, int *version)
{
    *version = CUDA_MAJOR * 1000 + 90;
    return CUDA_OK;
}

ENTRY(int, cuDeviceGetCount, int *count)
{
    *count = sim_device_count();
    return CUDA_OK;
}

ENTRY(int, cuDeviceGet, int *device, int ordinal)
{
    if (!exists(ordinal))
        return CUDA_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_OK;
}

ENTRY(int, cuDeviceGetName, char *name, int length, int)
{
    snprintf(name, (size_t)length, "Simulated GPU");
    return CUDA_OK;
}

ENTRY(int, cuDeviceGetUuid_v2, unsigned char uuid[16], int device)
{
    sim_uuid(uuid, sim_gpu_of(device));
    return CUDA_OK;
}

ENTRY(int, cuDeviceGetPCIBusId, char *text, int length, int device)
{
    sim_pci_bus_id(text, (size_t)length, sim_gpu_of(device));
    return CUDA_OK;
}

ENTRY(int, cuDeviceTotalMem_v2, size_t *size, int device)
{
    *size = sim_capacity(device);
    return CUDA_OK;
}

static int attribute_value(int attribute, int device)
{
    switch ((enum device_attribute)attribute) {
    case ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case ATTRIBUTE_MAX_BLOCK_DIM_X:
    case ATTRIBUTE_MAX_BLOCK_DIM_Y: return MAX_THREADS_PER_BLOCK;
    case ATTRIBUTE_MAX_BLOCK_DIM_Z: return MAX_BLOCK_DEPTH;
    case ATTRIBUTE_MAX_GRID_DIM_X: return MAX_GRID_WIDTH;
    case ATTRIBUTE_MAX_GRID_DIM_Y:
    case ATTRIBUTE_MAX_GRID_DIM_Z: return MAX_GRID_HEIGHT;
    case ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return SHARED_PER_BLOCK;
    case ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return CONSTANT_MEMORY;
    case ATTRIBUTE_WARP_SIZE: return WARP_SIZE;
    case ATTRIBUTE_MAX_PITCH: return MAX_PITCH;
    case ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return REGISTERS;
    case ATTRIBUTE_CLOCK_RATE: return CLOCK_KHZ;
    case ATTRIBUTE_MEMORY_CLOCK_RATE: return MEMORY_CLOCK_KHZ;
    case ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return MEMORY_BUS_BITS;
    case ATTRIBUTE_L2_CACHE_SIZE: return L2_CACHE_BYTES;
    case ATTRIBUTE_TEXTURE_ALIGNMENT: return TEXTURE_ALIGNMENT;
    case ATTRIBUTE_MULTIPROCESSOR_COUNT: return MULTIPROCESSORS;
    case ATTRIBUTE_PCI_BUS_ID: return sim_gpu_of(device) + 1;
    case ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return MAX_THREADS_PER_MULTIPROCESSOR;
    case ATTRIBUTE_ASYNC_ENGINE_COUNT: return ASYNC_ENGINES;
    case ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return sim_compute_capability() / 10;
    case ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return sim_compute_capability() % 10;
    case ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return SHARED_PER_MULTIPROCESSOR;
    case ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return SHARED_PER_BLOCK_OPTIN;
    case ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return MAX_BLOCKS_PER_MULTIPROCESSOR;
    case ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return SHARED_RESERVED_PER_BLOCK;
    case ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case ATTRIBUTE_CONCURRENT_KERNELS:
    case ATTRIBUTE_UNIFIED_ADDRESSING:
    case ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case ATTRIBUTE_MANAGED_MEMORY:
    case ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case ATTRIBUTE_COOPERATIVE_LAUNCH:
    case ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case ATTRIBUTE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
    }
    /* Every other attribute is a feature that the simulated device lacks. */
    return 0;
}

ENTRY(int, cuDeviceGetAttribute, int *value, int attribute, int device)
{
    if (!exists(device))
        return CUDA_INVALID_DEVICE;
    *value = attribute_value(attribute, device);
    return CUDA_OK;
}

int retain_primary_context(struct context **out, int device)
{
    if (!exists(device))
        return CUDA_INVALID_DEVICE;
    primary[device] = (struct context){ .device = device, .retained = true };
    *out = &primary[device];
    return CUDA_OK;
}

ENTRY(int, cuDevicePrimaryCtxRetain, struct context **out, int device)
{
    return retain_primary_context(out, device);
}

ENTRY(int, cuDevicePrimaryCtxGetState, int device, unsigned *flags, int *active)
{
    if (!exists(device))
        return CUDA_INVALID_DEVICE;
    if (flags)
        *flags = 0;
    if (active)
        *active = primary[device].retained;
    return CUDA_OK;
}

ENTRY_SUCCEEDS(cuDevicePrimaryCtxRelease_v2)

ENTRY(int, cuDevicePrimaryCtxReset_v2, int device)
{
    if (!exists(device))
        return CUDA_INVALID_DEVICE;
    sim_free_context(device, NULL);
    return CUDA_OK;
}

EXPORT void *sim_current_context(void)
{
    struct context *context = top();
    return !context || context == &primary[context->device] ? NULL : context;
}

ENTRY(int, cuCtxCreate_v2, struct context **out, unsigned, int device)
{
    if (!exists(device) || depth == CONTEXT_DEPTH)
        return CUDA_INVALID_DEVICE;
    struct context *context = malloc(sizeof *context);
    if (!context)
        return CUDA_OUT_OF_MEMORY;
    *context = (struct context){ .device = device, .retained = true };
    stack[depth++] = context;
    sim_set_current_device(device);
    *out = context;
    return CUDA_OK;
}

ENTRY(int, cuCtxDestroy_v2, struct context *context)
{
    if (!context || context == &primary[context->device])
        return CUDA_INVALID_CONTEXT;
    sim_free_context(context->device, context);
    if (top() == context)
        depth--;
    if (top())
        sim_set_current_device(top()->device);
    free(context);
    return CUDA_OK;
}

ENTRY_SUCCEEDS(cuDevicePrimaryCtxSetFlags_v2)

ENTRY(int, cuCtxGetCurrent, struct context **out)
{
    *out = top();
    return CUDA_OK;
}

ENTRY(int, cuCtxSetCurrent, struct context *context)
{
    if (!context) {
        depth -= depth > 0;
        return CUDA_OK;
    }
    if (depth == 0)
        depth = 1;
    stack[depth - 1] = context;
    sim_set_current_device(context->device);
    return CUDA_OK;
}

ENTRY(int, cuCtxPushCurrent_v2, struct context *context)
{
    if (!context || depth == CONTEXT_DEPTH)
        return CUDA_INVALID_CONTEXT;
    stack[depth++] = context;
    sim_set_current_device(context->device);
    return CUDA_OK;
}

ENTRY(int, cuCtxPopCurrent_v2, struct context **out)
{
    if (!depth)
        return CUDA_INVALID_CONTEXT;
    if (out)
        *out = top();
    depth--;
    if (top())
        sim_set_current_device(top()->device);
    return CUDA_OK;
}

ENTRY(int, cuCtxGetDevice, int *device)
{
    if (!top())
        return CUDA_INVALID_CONTEXT;
    *device = top()->device;
    return CUDA_OK;
}

ENTRY_SUCCEEDS(cuCtxSynchronize)
ENTRY_SUCCEEDS(cuCtxSetLimit)

ENTRY(int, cuCtxGetLimit, size_t *value, int)
{
    *value = 1 << 20;
    return CUDA_OK;
}

ENTRY(int, cuCtxGetStreamPriorityRange, int *least, int *greatest)
{
    if (least)
        *least = LEAST_STREAM_PRIORITY;
    if (greatest)
        *greatest = GREATEST_STREAM_PRIORITY;
    return CUDA_OK;
}

ENTRY(int, cuStreamIsCapturing, void *stream, int *status)
{
    *status = sim_stream_of(stream)->capturing ? CAPTURE_ACTIVE : CAPTURE_NONE;
    return CUDA_OK;
}
