/* Driver API: virtual memory management, which PyTorch's expandable segments use.
 *
 * Physical memory is a place in a sparse file in memory, one file per device, so that a handle
 * can be mapped at several addresses and costs no file descriptor of its own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

struct physical_memory {
    int device;
    int file;
    off_t offset;
    size_t size;
    int references;
    struct allocation_properties properties;
};

struct mapping {
    char *base;
    size_t size;
    struct physical_memory *memory;
    struct mapping *next;
};

/* The file of a device is so long; only what is written of it takes RAM. */
static const off_t FILE_BYTES = (off_t)1 << 46;

static struct {
    bool open;
    int file;
    off_t end;
} device_files[MAX_DEVICES];

static struct mapping *mappings;

/* With memory_lock held. */
static void release(struct physical_memory *memory)
{
    if (--memory->references > 0)
        return;
    fallocate(memory->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, memory->offset,
              (off_t)memory->size);
    give_bytes_back(memory->device, memory->size);
    free(memory);
}

/* With memory_lock held. Whether the device's file has room for `size` more bytes. */
static bool open_device_file(int device, size_t size)
{
    if (!device_files[device].open) {
        int file = memfd_create("simulated device memory", MFD_CLOEXEC);
        if (file < 0)
            return false;
        if (ftruncate(file, FILE_BYTES) != 0) {
            close(file);
            return false;
        }
        device_files[device].file = file;
        device_files[device].open = true;
    }
    return size <= (size_t)(FILE_BYTES - device_files[device].end);
}

ENTRY(int, cuMemGetAllocationGranularity, size_t *out, const struct allocation_properties *, int)
{
    *out = PAGE_2M;
    return CUDA_OK;
}

ENTRY(int, cuMemAddressReserve, device_pointer *out, size_t size, size_t alignment, device_pointer,
      unsigned long long)
{
    size_t unit = alignment > PAGE_2M ? alignment : PAGE_2M;
    void *base = reserve_address_space(size, unit, PROT_NONE);
    sim_trace("cuMemAddressReserve %zu bytes -> %p", size, base);
    if (!base)
        return CUDA_OUT_OF_MEMORY;
    *out = (uintptr_t)base;
    return CUDA_OK;
}

ENTRY(int, cuMemAddressFree, device_pointer base, size_t size)
{
    return munmap((void *)(uintptr_t)base, size) == 0 ? CUDA_OK : CUDA_INVALID_VALUE;
}

ENTRY(int, cuMemCreate, struct physical_memory **out, size_t size,
      const struct allocation_properties *properties, unsigned long long)
{
    int device = properties->location_type == LOCATION_DEVICE ? properties->location_id : 0;
    if (device < 0 || device >= sim_device_count() || size % PAGE_2M != 0 || size == 0)
        return CUDA_INVALID_VALUE;
    struct physical_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return CUDA_OUT_OF_MEMORY;

    begin_call();
    pthread_mutex_lock(&memory_lock);
    bool taken = open_device_file(device, size) && take_bytes(device, size);
    if (taken) {
        *memory = (struct physical_memory){
            .device = device,
            .file = device_files[device].file,
            .offset = device_files[device].end,
            .size = size,
            .references = 1,
            .properties = *properties,
        };
        device_files[device].end += (off_t)size;
    }
    pthread_mutex_unlock(&memory_lock);
    end_call();

    sim_trace("cuMemCreate device %d, %zu bytes -> %p", device, size, taken ? (void *)memory : NULL);
    if (!taken) {
        free(memory);
        return CUDA_OUT_OF_MEMORY;
    }
    *out = memory;
    return CUDA_OK;
}

ENTRY(int, cuMemRelease, struct physical_memory *memory)
{
    begin_call();
    pthread_mutex_lock(&memory_lock);
    release(memory);
    pthread_mutex_unlock(&memory_lock);
    end_call();
    return CUDA_OK;
}

ENTRY(int, cuMemMap, device_pointer at, size_t size, size_t offset, struct physical_memory *memory,
      unsigned long long)
{
    char *base = (char *)(uintptr_t)at;
    struct mapping *mapping = calloc(1, sizeof *mapping);
    if (!mapping)
        return CUDA_OUT_OF_MEMORY;
    if (mmap(base, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->file,
             memory->offset + (off_t)offset) == MAP_FAILED) {
        free(mapping);
        return CUDA_OUT_OF_MEMORY;
    }
    struct memory_range range = { base, size, memory->device, MEMORY_MAPPED, NULL };
    pthread_mutex_lock(&memory_lock);
    memory->references++;
    *mapping = (struct mapping){ base, size, memory, mappings };
    mappings = mapping;
    insert_range(range, 0);
    pthread_mutex_unlock(&memory_lock);
    sim_trace("cuMemMap %p, %zu bytes", (void *)base, size);
    return CUDA_OK;
}

ENTRY(int, cuMemSetAccess, device_pointer base, size_t size, const void *, size_t)
{
    int error = mprotect((void *)(uintptr_t)base, size, PROT_READ | PROT_WRITE);
    return error ? CUDA_INVALID_VALUE : CUDA_OK;
}

ENTRY(int, cuMemUnmap, device_pointer at, size_t size)
{
    char *start = (char *)(uintptr_t)at, *end = start + size;
    pthread_mutex_lock(&memory_lock);
    for (struct mapping **link = &mappings; *link;) {
        struct mapping *mapping = *link;
        if (mapping->base < start || mapping->base >= end) {
            link = &mapping->next;
            continue;
        }
        remove_range(mapping->base);
        /* The address space stays reserved. */
        mmap(mapping->base, mapping->size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        release(mapping->memory);
        *link = mapping->next;
        free(mapping);
    }
    pthread_mutex_unlock(&memory_lock);
    sim_trace("cuMemUnmap %p, %zu bytes", (void *)start, size);
    return CUDA_OK;
}

ENTRY(int, cuMemRetainAllocationHandle, struct physical_memory **out, void *address)
{
    int error = CUDA_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    for (struct mapping *mapping = mappings; mapping; mapping = mapping->next) {
        if ((char *)address >= mapping->base && (char *)address < mapping->base + mapping->size) {
            mapping->memory->references++;
            *out = mapping->memory;
            error = CUDA_OK;
            break;
        }
    }
    pthread_mutex_unlock(&memory_lock);
    return error;
}

ENTRY(int, cuMemGetAllocationPropertiesFromHandle, struct allocation_properties *out,
      struct physical_memory *memory)
{
    *out = memory->properties;
    return CUDA_OK;
}

/* Sharing between processes is not simulated; PyTorch needs the names to exist. */
ENTRY(int, cuMemExportToShareableHandle, void)
{
    return CUDA_NOT_SUPPORTED;
}

ENTRY(int, cuMemImportFromShareableHandle, void)
{
    return CUDA_NOT_SUPPORTED;
}
