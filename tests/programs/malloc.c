/* A malloc for LD_PRELOAD that keeps nothing where that of the C library keeps the size of a chunk: as jemalloc and
   tcmalloc, which it stands for. Before a block lie where its memory begins and, inverted, which list it goes back to. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { CLASSES = 256, STEP = 4, ARENA = 64 << 20, HEADER = 16 };

struct header {
    void *memory;
    uint64_t inverted;
};

static void *lists[CLASSES];
static char *arena, *arena_end;
static char locked;

static void lock(void)
{
    while (__atomic_test_and_set(&locked, __ATOMIC_ACQUIRE))
        __builtin_ia32_pause();
}

static void unlock(void)
{
    __atomic_clear(&locked, __ATOMIC_RELEASE);
}

/* Four sizes from each power of two to the next. */
static size_t size_of(unsigned class)
{
    size_t power = (size_t)64 << class / STEP;
    return power + power / STEP * (class % STEP);
}

static unsigned class_of(size_t size)
{
    unsigned class = 0;
    while (size_of(class) < size)
        class++;
    return class;
}

static void *fresh(size_t size)
{
    if (size > (size_t)(arena_end - arena)) {
        size_t room = size > ARENA ? size : ARENA;
        char *new = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (new == MAP_FAILED)
            return NULL;
        if (size >= ARENA)
            return new;
        arena = new;
        arena_end = new + room;
    }
    char *memory = arena;
    arena += size;
    return memory;
}

static void *get(size_t alignment, size_t size)
{
    if (alignment < HEADER)
        alignment = HEADER;
    if (size > (size_t)1 << 46)
        return errno = ENOMEM, NULL;
    unsigned class = class_of(size + HEADER + alignment);
    lock();
    char *memory = lists[class];
    if (memory)
        memcpy(&lists[class], memory, sizeof(void *));
    else
        memory = fresh(size_of(class));
    unlock();
    if (!memory)
        return errno = ENOMEM, NULL;
    uintptr_t block = ((uintptr_t)memory + HEADER + alignment - 1) & ~(uintptr_t)(alignment - 1);
    ((struct header *)block)[-1] = (struct header){memory, ~(uint64_t)class};
    return (void *)block;
}

size_t malloc_usable_size(void *block)
{
    if (!block)
        return 0;
    struct header *header = (struct header *)block - 1;
    return size_of(~header->inverted) - ((char *)block - (char *)header->memory);
}

void *malloc(size_t size)
{
    return get(HEADER, size);
}

void free(void *block)
{
    if (!block)
        return;
    struct header header = ((struct header *)block)[-1];
    lock();
    memcpy(header.memory, &lists[~header.inverted], sizeof(void *));
    lists[~header.inverted] = header.memory;
    unlock();
}

void *calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return errno = ENOMEM, NULL;
    void *block = get(HEADER, bytes);
    return block ? memset(block, 0, bytes) : NULL;
}

void *realloc(void *block, size_t size)
{
    size_t before = malloc_usable_size(block);
    if (block && size <= before)
        return block;
    void *larger = get(HEADER, size);
    if (larger && block) {
        memcpy(larger, block, before);
        free(block);
    }
    return larger;
}

void *memalign(size_t alignment, size_t size)
{
    return get(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return get(alignment, size);
}

int posix_memalign(void **block, size_t alignment, size_t size)
{
    void *got = get(alignment, size);
    if (!got)
        return ENOMEM;
    *block = got;
    return 0;
}

void *valloc(size_t size)
{
    return get(4096, size);
}

void *pvalloc(size_t size)
{
    return get(4096, (size + 4095) & ~(size_t)4095);
}
