/* Driver API: memory that is allocated whole. driver_virtual_memory.c has the rest. */
#include "driver.h"
#include "state.h"

static void *address(device_pointer pointer)
{
    return (void *)(uintptr_t)pointer;
}

ENTRY(int, cuMemGetInfo_v2, size_t *free, size_t *total)
{
    int device = sim_current_device();
    size_t capacity = sim_capacity(device), used = sim_used(device);
    if (free)
        *free = capacity > used ? capacity - used : 0;
    if (total)
        *total = capacity;
    return CUDA_OK;
}

ENTRY(int, cuMemAlloc_v2, device_pointer *out, size_t size)
{
    if (!out || !size)
        return CUDA_INVALID_VALUE;
    void *base;
    int error = sim_allocate(sim_current_device(), size, MEMORY_DEVICE, &base);
    *out = (uintptr_t)base;
    sim_trace("cuMemAlloc_v2 device %d, %zu bytes -> %p, error %d", sim_current_device(), size, base,
              error);
    return error;
}

ENTRY(int, cuMemFree_v2, device_pointer pointer)
{
    int error = sim_free(address(pointer), MEMORY_DEVICE);
    if (error)
        error = sim_free(address(pointer), MEMORY_MANAGED);
    sim_trace("cuMemFree_v2 %p, error %d", address(pointer), error);
    return error;
}

ENTRY(int, cuMemAllocManaged, device_pointer *out, size_t size, unsigned)
{
    if (!out || !size)
        return CUDA_INVALID_VALUE;
    void *base;
    int error = sim_allocate(sim_current_device(), size, MEMORY_MANAGED, &base);
    *out = (uintptr_t)base;
    return error;
}

ENTRY(int, cuMemHostAlloc, void **out, size_t size, unsigned)
{
    if (!out || !size)
        return CUDA_INVALID_VALUE;
    int error = sim_allocate(sim_current_device(), size, MEMORY_HOST, out);
    sim_trace("cuMemHostAlloc %zu bytes -> %p, error %d", size, *out, error);
    return error;
}

ENTRY(int, cuMemFreeHost, void *pointer)
{
    return sim_free(pointer, MEMORY_HOST);
}

ENTRY(int, cuMemHostRegister_v2, void *pointer, size_t size, unsigned)
{
    if (!pointer || !size)
        return CUDA_INVALID_VALUE;
    struct memory_range range = { pointer, size, sim_current_device(), MEMORY_REGISTERED,
                                  sim_current_context() };
    pthread_mutex_lock(&memory_lock);
    insert_range(range, 0);
    pthread_mutex_unlock(&memory_lock);
    return CUDA_OK;
}

ENTRY(int, cuMemHostUnregister, void *pointer)
{
    return sim_free(pointer, MEMORY_REGISTERED);
}

static int address_range(device_pointer *base, size_t *size, device_pointer pointer)
{
    struct memory_range range;
    if (!sim_find(address(pointer), &range))
        return CUDA_NOT_FOUND;
    if (base)
        *base = (uintptr_t)range.base;
    if (size)
        *size = range.size;
    return CUDA_OK;
}

ENTRY(int, cuMemGetAddressRange_v2, device_pointer *base, size_t *size, device_pointer pointer)
{
    return address_range(base, size, pointer);
}

ENTRY(int, cuMemGetAddressRange, device_pointer *base, size_t *size, device_pointer pointer)
{
    return address_range(base, size, pointer);
}

/* CUpointer_attribute, cuda.h */
enum pointer_attribute {
    POINTER_MEMORY_TYPE = 2,
    POINTER_DEVICE_POINTER = 3,
    POINTER_HOST_POINTER = 4,
    POINTER_IS_MANAGED = 8,
    POINTER_DEVICE_ORDINAL = 9,
    POINTER_RANGE_START = 11,
    POINTER_RANGE_SIZE = 12,
};

/* CUmemorytype, cuda.h */
enum { TYPE_HOST = 1, TYPE_DEVICE = 2 };

ENTRY(int, cuPointerGetAttribute, void *out, int attribute, device_pointer pointer)
{
    struct memory_range range;
    if (!sim_find(address(pointer), &range))
        return CUDA_INVALID_VALUE;
    bool on_host = range.kind == MEMORY_HOST || range.kind == MEMORY_REGISTERED;
    switch ((enum pointer_attribute)attribute) {
    case POINTER_MEMORY_TYPE: *(unsigned *)out = on_host ? TYPE_HOST : TYPE_DEVICE; return CUDA_OK;
    case POINTER_DEVICE_POINTER:
    case POINTER_HOST_POINTER: *(void **)out = address(pointer); return CUDA_OK;
    case POINTER_IS_MANAGED: *(unsigned *)out = range.kind == MEMORY_MANAGED; return CUDA_OK;
    case POINTER_DEVICE_ORDINAL: *(int *)out = range.device; return CUDA_OK;
    case POINTER_RANGE_START: *(void **)out = range.base; return CUDA_OK;
    case POINTER_RANGE_SIZE: *(size_t *)out = range.size; return CUDA_OK;
    }
    return CUDA_NOT_SUPPORTED;
}

ENTRY(int, cuMemsetD8Async, device_pointer to, unsigned char byte, size_t count, void *)
{
    sim_fill(address(to), byte, count);
    return CUDA_OK;
}

ENTRY(int, cuMemsetD32Async, device_pointer to, unsigned word, size_t count, void *)
{
    unsigned *words = address(to);
    for (size_t i = 0; i < count; i++)
        sim_copy(words + i, &word, sizeof word);
    return CUDA_OK;
}

ENTRY(int, cuMemcpyHtoDAsync_v2, device_pointer to, const void *from, size_t size, void *)
{
    sim_copy(address(to), from, size);
    return CUDA_OK;
}

ENTRY(int, cuMemcpyDtoHAsync_v2, void *to, device_pointer from, size_t size, void *)
{
    sim_copy(to, address(from), size);
    return CUDA_OK;
}

/* Waits between streams poll such words, so they are written whatever CUDASIM_COPY says. */
static void write_word(device_pointer to, uint32_t value)
{
    *(volatile uint32_t *)address(to) = value;
}

ENTRY(int, cuStreamWriteValue32_v2, void *, device_pointer to, uint32_t value, unsigned)
{
    write_word(to, value);
    return CUDA_OK;
}

/* PyTorch before 2.7 asks dlsym() for this and for cuMemGetAddressRange without their version. */
ENTRY(int, cuStreamWriteValue32, void *, device_pointer to, uint32_t value, unsigned)
{
    write_word(to, value);
    return CUDA_OK;
}
