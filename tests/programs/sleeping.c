/*
 * An allocator for torch.cuda.memory.CUDAPluggableAllocator of the shape of vLLM's cumem_allocator.cpp: each allocation
 * is physical memory of its own, mapped to reserved addresses. sleeping_sleep() gives the memory back and keeps the
 * addresses; sleeping_wake() maps new memory there. SLEEPING_PIECES creates an allocation in so many
 * pieces, if it can be divided.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

enum { MOST = 4096, GRANULE = 2 << 20 };

struct properties {
    int type, handle_types;
    int location_type, location_id;
    uint64_t rest[4];
};

struct access {
    int location_type, location_id, flags;
};

typedef unsigned long long pointer;

int cuMemAddressReserve(pointer *out, size_t size, size_t alignment, pointer address, unsigned long long flags);
int cuMemAddressFree(pointer address, size_t size);
int cuMemCreate(pointer *out, size_t size, const struct properties *properties, unsigned long long flags);
int cuMemRelease(pointer handle);
int cuMemMap(pointer address, size_t size, size_t offset, pointer handle, unsigned long long flags);
int cuMemUnmap(pointer address, size_t size);
int cudaMallocManaged(void **out, size_t size, unsigned flags);
int cudaFree(void *memory);
int cuMemSetAccess(pointer address, size_t size, const struct access *access, size_t count);

static struct {
    pointer address;
    size_t size;
    int device, awake;
    size_t pieces;
    pointer handles[16];
} allocations[MOST];

static size_t piece_size(int at)
{
    return allocations[at].size / allocations[at].pieces;
}

static int wake(int at)
{
    struct properties properties = { 1, 0, 1, allocations[at].device, { 0 } };
    struct access access = { 1, allocations[at].device, 3 };
    for (size_t piece = 0; piece < allocations[at].pieces; piece++) {
        pointer address = allocations[at].address + piece * piece_size(at);
        pointer *handle = &allocations[at].handles[piece];
        if (cuMemCreate(handle, piece_size(at), &properties, 0)
            || cuMemMap(address, piece_size(at), 0, *handle, 0))
            return 1;
    }
    allocations[at].awake = 1;
    return cuMemSetAccess(allocations[at].address, allocations[at].size, &access, 1);
}

static void let_sleep(int at)
{
    if (!allocations[at].awake)
        return;
    for (size_t piece = 0; piece < allocations[at].pieces; piece++) {
        cuMemUnmap(allocations[at].address + piece * piece_size(at), piece_size(at));
        cuMemRelease(allocations[at].handles[piece]);
    }
    allocations[at].awake = 0;
}

/* Called with each allocation: device, size, address, place; and with the address of each free. */
static void (*on_malloc)(int device, size_t size, pointer address, int place);
static void (*on_free)(pointer address);

EXPORT void sleeping_tell(void (*malloc_call)(int, size_t, pointer, int), void (*free_call)(pointer))
{
    on_malloc = malloc_call;
    on_free = free_call;
}

EXPORT void *sleeping_malloc(size_t size, int device, void *stream)
{
    (void)stream;
    const char *pieces = getenv("SLEEPING_PIECES");
    size_t whole = (size + GRANULE - 1) / GRANULE * GRANULE;
    for (int at = 0; at < MOST; at++) {
        if (allocations[at].size)
            continue;
        allocations[at].size = whole;
        allocations[at].device = device;
        allocations[at].pieces = pieces ? (size_t)atoi(pieces) : 1;
        if (whole % (GRANULE * allocations[at].pieces))
            allocations[at].pieces = 1;
        if (cuMemAddressReserve(&allocations[at].address, whole, 0, 0, 0) || wake(at)) {
            allocations[at].size = 0;
            return NULL;
        }
        if (on_malloc)
            on_malloc(device, whole, allocations[at].address, at);
        return (void *)(uintptr_t)allocations[at].address;
    }
    return NULL;
}

EXPORT void sleeping_free(void *memory, size_t size, int device, void *stream)
{
    (void)size, (void)device, (void)stream;
    for (int at = 0; at < MOST; at++) {
        if (!allocations[at].size || allocations[at].address != (uintptr_t)memory)
            continue;
        if (on_free)
            on_free(allocations[at].address);
        let_sleep(at);
        cuMemAddressFree(allocations[at].address, allocations[at].size);
        allocations[at].size = 0;
    }
}

EXPORT void sleeping_sleep(void)
{
    for (int at = 0; at < MOST; at++)
        if (allocations[at].size)
            let_sleep(at);
}

EXPORT int sleeping_wake(void)
{
    int error = 0;
    for (int at = 0; at < MOST; at++)
        if (allocations[at].size && !allocations[at].awake)
            error |= wake(at);
    return error;
}

/* Bytes that the allocator holds now. */
EXPORT size_t sleeping_backed(void)
{
    size_t backed = 0;
    for (int at = 0; at < MOST; at++)
        if (allocations[at].size && allocations[at].awake)
            backed += allocations[at].size;
    return backed;
}

/* The same with managed memory, which never sleeps. */
EXPORT void *managed_malloc(size_t size, int device, void *stream)
{
    (void)device, (void)stream;
    void *memory = NULL;
    return cudaMallocManaged(&memory, size, 1) ? NULL : memory;
}

EXPORT void managed_free(void *memory, size_t size, int device, void *stream)
{
    (void)size, (void)device, (void)stream;
    cudaFree(memory);
}
