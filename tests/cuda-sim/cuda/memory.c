/* Memory: address space handed out, and an index of it by address. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "state.h"

struct indexed_range {
    struct memory_range range;
    /* Bytes it takes of its device. */
    size_t charge;
};

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

/* Sorted by address. */
static struct indexed_range *ranges;
static size_t range_count, range_room;

enum { HOST_PAGE = 4096 };

static size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) & ~(unit - 1);
}

void *reserve_address_space(size_t size, size_t alignment, int protection)
{
    size_t whole;
    if (__builtin_add_overflow(size, alignment, &whole))
        return NULL;
    char *start = mmap(NULL, whole, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    char *aligned = (char *)round_up((uintptr_t)start, alignment);
    char *end = aligned + round_up(size, HOST_PAGE);
    if (aligned > start)
        munmap(start, (size_t)(aligned - start));
    if (end < start + whole)
        munmap(end, (size_t)(start + whole - end));
    madvise(aligned, size, MADV_NOHUGEPAGE);
    return aligned;
}

/* How many ranges start at or below `pointer`. */
static size_t ranges_up_to(const void *pointer)
{
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].range.base <= (const char *)pointer)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct indexed_range *range_around(const void *pointer)
{
    size_t count = ranges_up_to(pointer);
    if (count == 0)
        return NULL;
    struct indexed_range *found = &ranges[count - 1];
    return (const char *)pointer < found->range.base + found->range.size ? found : NULL;
}

void insert_range(struct memory_range range, size_t charge)
{
    if (range_count == range_room) {
        range_room = range_room ? range_room * 2 : 256;
        ranges = realloc(ranges, range_room * sizeof *ranges);
        if (!ranges)
            abort();
    }
    size_t at = ranges_up_to(range.base);
    memmove(ranges + at + 1, ranges + at, (range_count - at) * sizeof *ranges);
    ranges[at] = (struct indexed_range){ .range = range, .charge = charge };
    range_count++;
}

void remove_range(const void *base)
{
    struct indexed_range *found = range_around(base);
    if (!found || found->range.base != base)
        return;
    size_t at = (size_t)(found - ranges);
    memmove(ranges + at, ranges + at + 1, (range_count - at - 1) * sizeof *ranges);
    range_count--;
}

bool lookup_range(const void *pointer, struct memory_range *out)
{
    const struct indexed_range *found = range_around(pointer);
    if (found)
        *out = found->range;
    return found != NULL;
}

EXPORT int sim_allocate(int device, size_t size, enum memory_kind kind, void **out)
{
    *out = NULL;
    size_t unit = kind == MEMORY_HOST ? HOST_PAGE : PAGE_2M;
    if (size > SIZE_MAX - unit)
        return CUDA_OUT_OF_MEMORY;
    size_t whole = round_up(size, unit);
    size_t charge = kind == MEMORY_DEVICE ? whole : 0;

    begin_call();
    pthread_mutex_lock(&memory_lock);
    int error = CUDA_OUT_OF_MEMORY;
    if (take_bytes(device, charge)) {
        void *base = reserve_address_space(whole, unit, PROT_READ | PROT_WRITE);
        if (base) {
            struct memory_range range = { base, whole, device, kind, sim_current_context() };
            insert_range(range, charge);
            *out = base;
            error = CUDA_OK;
        } else {
            give_bytes_back(device, charge);
        }
    }
    pthread_mutex_unlock(&memory_lock);
    end_call();
    return error;
}

static int free_range(void *base, enum memory_kind kind)
{
    pthread_mutex_lock(&memory_lock);
    struct indexed_range *found = range_around(base);
    if (!found || found->range.base != base || found->range.kind != kind) {
        pthread_mutex_unlock(&memory_lock);
        return CUDA_INVALID_VALUE;
    }
    struct memory_range range = found->range;
    give_bytes_back(range.device, found->charge);
    remove_range(base);
    /* Unmapped under the lock: afterwards another thread may get the same addresses. */
    if (kind != MEMORY_REGISTERED)
        munmap(range.base, range.size);
    pthread_mutex_unlock(&memory_lock);
    return CUDA_OK;
}

EXPORT int sim_free(void *base, enum memory_kind kind)
{
    begin_call();
    int error = free_range(base, kind);
    end_call();
    return error;
}

EXPORT void sim_free_context(int device, const void *context)
{
    pthread_mutex_lock(&memory_lock);
    for (size_t at = range_count; at-- > 0;) {
        struct indexed_range gone = ranges[at];
        if (gone.range.device != device || gone.range.context != context
            || gone.range.kind == MEMORY_MAPPED)
            continue;
        give_bytes_back(device, gone.charge);
        remove_range(gone.range.base);
        if (gone.range.kind != MEMORY_REGISTERED)
            munmap(gone.range.base, gone.range.size);
    }
    pthread_mutex_unlock(&memory_lock);
}

EXPORT bool sim_find(const void *pointer, struct memory_range *out)
{
    pthread_mutex_lock(&memory_lock);
    bool found = lookup_range(pointer, out);
    pthread_mutex_unlock(&memory_lock);
    return found;
}

static bool write_is_dropped(const void *to)
{
    struct memory_range range;
    return !settings()->real_copies && sim_find(to, &range)
        && (range.kind == MEMORY_DEVICE || range.kind == MEMORY_MAPPED);
}

EXPORT void sim_copy(void *to, const void *from, size_t size)
{
    if (size && !write_is_dropped(to))
        memmove(to, from, size);
}

EXPORT void sim_fill(void *to, int byte, size_t size)
{
    if (size && !write_is_dropped(to))
        memset(to, byte, size);
}
