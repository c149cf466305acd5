/* Runtime API: memory in stream order (PyTorch's backend:cudaMallocAsync). A pool keeps nothing. */
#include <pthread.h>

#include "runtime.h"

struct pool {
    uint64_t release_threshold;
    uint64_t used;
    uint64_t used_high;
};

static struct pool pools[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

EXPORT int cudaDeviceGetDefaultMemPool(struct pool **out, int device)
{
    if (device < 0 || device >= sim_device_count())
        return report(CUDA_INVALID_DEVICE);
    *out = &pools[device];
    return CUDA_OK;
}

EXPORT int cudaMallocAsync(void **out, size_t size, void *stream)
{
    bind_context();
    int device = sim_current_device();
    device_pointer pointer = 0;
    int error = cuMemAllocAsync(&pointer, size, stream);
    *out = (void *)(uintptr_t)pointer;
    sim_trace("cudaMallocAsync device %d, %zu bytes -> %p, error %d", device, size, *out, error);
    struct memory_range range;
    if (!error && sim_find(*out, &range)) {
        struct pool *pool = &pools[device];
        pthread_mutex_lock(&lock);
        pool->used += range.size;
        if (pool->used > pool->used_high)
            pool->used_high = pool->used;
        pthread_mutex_unlock(&lock);
    }
    return report(error);
}

EXPORT int cudaFreeAsync(void *pointer, void *stream)
{
    struct memory_range range;
    if (!sim_find(pointer, &range))
        return report(CUDA_INVALID_VALUE);
    int error = cuMemFreeAsync((uintptr_t)pointer, stream);
    sim_trace("cudaFreeAsync %p, error %d", pointer, error);
    if (!error) {
        pthread_mutex_lock(&lock);
        pools[range.device].used -= range.size;
        pthread_mutex_unlock(&lock);
    }
    return report(error);
}

/* cudaMemPoolAttr, driver_types.h; the first three are int, the others 64 bits wide */
enum pool_attribute {
    REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
    REUSE_ALLOW_OPPORTUNISTIC = 2,
    REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
    RELEASE_THRESHOLD = 4,
    RESERVED_CURRENT = 5,
    RESERVED_HIGH = 6,
    USED_CURRENT = 7,
    USED_HIGH = 8,
};

EXPORT int cudaMemPoolGetAttribute(struct pool *pool, int attribute, void *out)
{
    uint64_t *value = out;
    int error = CUDA_OK;
    pthread_mutex_lock(&lock);
    switch ((enum pool_attribute)attribute) {
    case REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case REUSE_ALLOW_OPPORTUNISTIC:
    case REUSE_ALLOW_INTERNAL_DEPENDENCIES: *(int *)out = 1; break;
    case RELEASE_THRESHOLD: *value = pool->release_threshold; break;
    case RESERVED_CURRENT:
    case USED_CURRENT: *value = pool->used; break;
    case RESERVED_HIGH:
    case USED_HIGH: *value = pool->used_high; break;
    default: error = CUDA_NOT_SUPPORTED; break;
    }
    pthread_mutex_unlock(&lock);
    return report(error);
}

EXPORT int cudaMemPoolSetAttribute(struct pool *pool, int attribute, const void *value)
{
    pthread_mutex_lock(&lock);
    if (attribute == RELEASE_THRESHOLD)
        pool->release_threshold = *(const uint64_t *)value;
    if (attribute == RESERVED_HIGH || attribute == USED_HIGH)
        pool->used_high = pool->used;
    pthread_mutex_unlock(&lock);
    return CUDA_OK;
}

EXPORT int cudaDeviceGetGraphMemAttribute(int, int, void *out)
{
    *(uint64_t *)out = 0;
    return CUDA_OK;
}

SUCCEEDS(cudaDeviceSetGraphMemAttribute)
SUCCEEDS(cudaMemPoolSetAccess)
SUCCEEDS(cudaMemPoolTrimTo)
