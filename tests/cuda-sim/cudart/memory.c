/* Runtime API: memory. */
#include <string.h>

#include "runtime.h"
#include "toolkit.h"

EXPORT int cudaMalloc(void **out, size_t size)
{
    bind_context();
    if (!out)
        return report(CUDA_INVALID_VALUE);
    *out = NULL;
    if (!size)
        return CUDA_OK;
    if (sim_malloc_fails()) {
        sim_trace("cudaMalloc %zu bytes fails as asked", size);
        return report(CUDA_OUT_OF_MEMORY);
    }
    device_pointer pointer = 0;
    int error = cuMemAlloc_v2(&pointer, size);
    *out = (void *)(uintptr_t)pointer;
    return report(error);
}

EXPORT int cudaFree(void *pointer)
{
    bind_context();
    if (!pointer)
        return CUDA_OK;
    int error = cuMemFree_v2((uintptr_t)pointer);
    return report(error);
}

EXPORT int cudaMallocManaged(void **out, size_t size, unsigned flags)
{
    bind_context();
    device_pointer pointer = 0;
    int error = cuMemAllocManaged(&pointer, size, flags);
    *out = (void *)(uintptr_t)pointer;
    return report(error);
}

EXPORT int cudaHostAlloc(void **out, size_t size, unsigned flags)
{
    bind_context();
    return report(cuMemHostAlloc(out, size, flags));
}

EXPORT int cudaMallocHost(void **out, size_t size)
{
    return cudaHostAlloc(out, size, 0);
}

EXPORT int cudaFreeHost(void *pointer)
{
    return pointer ? report(cuMemFreeHost(pointer)) : CUDA_OK;
}

EXPORT int cudaHostRegister(void *pointer, size_t size, unsigned flags)
{
    return report(cuMemHostRegister_v2(pointer, size, flags));
}

EXPORT int cudaHostUnregister(void *pointer)
{
    return report(cuMemHostUnregister(pointer));
}

EXPORT int cudaMemGetInfo(size_t *free, size_t *total)
{
    bind_context();
    int device = sim_current_device();
    size_t capacity = sim_capacity(device), used = sim_used(device);
    *free = capacity > used ? capacity - used : 0;
    *total = capacity;
    return CUDA_OK;
}

EXPORT int cudaMemcpy(void *to, const void *from, size_t size, int)
{
    sim_copy(to, from, size);
    return CUDA_OK;
}

EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t size, int, void *)
{
    sim_copy(to, from, size);
    return CUDA_OK;
}

EXPORT int cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t size, void *)
{
    sim_copy(to, from, size);
    return CUDA_OK;
}

EXPORT int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                             size_t width, size_t height, int, void *)
{
    for (size_t row = 0; row < height; row++)
        sim_copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return CUDA_OK;
}

EXPORT int cudaMemset(void *to, int byte, size_t size)
{
    sim_fill(to, byte, size);
    return CUDA_OK;
}

EXPORT int cudaMemsetAsync(void *to, int byte, size_t size, void *)
{
    sim_fill(to, byte, size);
    return CUDA_OK;
}

/* cudaMemoryType, driver_types.h */
enum memory_type { TYPE_UNREGISTERED = 0, TYPE_HOST = 1, TYPE_DEVICE = 2, TYPE_MANAGED = 3 };

EXPORT int cudaPointerGetAttributes(struct pointer_attributes *out, const void *pointer)
{
    void *same = (void *)(uintptr_t)pointer;
    struct memory_range range;
    if (!sim_find(pointer, &range)) {
        *out = (struct pointer_attributes){
            .type = TYPE_UNREGISTERED, .device = -2, .host_pointer = same
        };
        return CUDA_OK;
    }
    *out = (struct pointer_attributes){
        .type = TYPE_DEVICE, .device = range.device, .device_pointer = same
    };
    switch (range.kind) {
    case MEMORY_DEVICE:
    case MEMORY_MAPPED: break;
    case MEMORY_HOST:
    case MEMORY_REGISTERED: out->type = TYPE_HOST; out->host_pointer = same; break;
    case MEMORY_MANAGED: out->type = TYPE_MANAGED; out->host_pointer = same; break;
    }
    return CUDA_OK;
}
