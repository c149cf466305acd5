/* Driver API: memory of another process. The handle names process, address and size; nobody looks into it. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"
#include "state.h"

enum { MOST_OPEN = 256 };

/* The memory that this process has opened. */
static struct {
    struct ipc_handle handle;
    void *address;
    size_t size, openings;
} opened[MOST_OPEN];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

ENTRY(int, cuIpcGetMemHandle, struct ipc_handle *out, device_pointer pointer)
{
    struct memory_range range;
    if (!sim_find((void *)(uintptr_t)pointer, &range) || range.kind != MEMORY_DEVICE)
        return CUDA_INVALID_VALUE;
    const uint64_t words[] = { (uint64_t)getpid(), (uintptr_t)range.base, range.size };
    memset(out, 0, sizeof *out);
    memcpy(out, words, sizeof words);
    return CUDA_OK;
}

static int open_handle(device_pointer *out, const struct ipc_handle *handle)
{
    uint64_t words[3];
    memcpy(words, handle, sizeof words);
    if (words[0] == (uint64_t)getpid() || !words[2])
        return CUDA_INVALID_VALUE;
    int free = -1;
    for (int at = MOST_OPEN - 1; at >= 0; at--) {
        if (!opened[at].openings)
            free = at;
        else if (memcmp(&opened[at].handle, handle, sizeof *handle) == 0) {
            opened[at].openings++;
            *out = (uintptr_t)opened[at].address;
            return CUDA_OK;
        }
    }
    void *address = mmap(NULL, words[2], PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (free < 0 || address == MAP_FAILED)
        return CUDA_OUT_OF_MEMORY;
    opened[free].handle = *handle;
    opened[free].address = address;
    opened[free].size = words[2];
    opened[free].openings = 1;
    *out = (uintptr_t)address;
    return CUDA_OK;
}

ENTRY(int, cuIpcOpenMemHandle_v2, device_pointer *out, struct ipc_handle handle, unsigned)
{
    pthread_mutex_lock(&lock);
    int error = open_handle(out, &handle);
    pthread_mutex_unlock(&lock);
    return error;
}

ENTRY(int, cuIpcCloseMemHandle, device_pointer pointer)
{
    int error = CUDA_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (int at = 0; at < MOST_OPEN && error; at++) {
        if (!opened[at].openings || (uintptr_t)opened[at].address != pointer)
            continue;
        if (--opened[at].openings == 0)
            munmap(opened[at].address, opened[at].size);
        error = CUDA_OK;
    }
    pthread_mutex_unlock(&lock);
    return error;
}
