/*
 * NCCL's functions that make communicators, to be preloaded: each gets device memory for a communicator, 8 MiB for the
 * first of the process and 2 MiB more for each further one, and calls the simulated NCCL.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

struct unique_id {
    char bytes[128];
};

int cudaMalloc(void **out, size_t size);

static void *function(const char *name)
{
    void *library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

static int take(void)
{
    static size_t made;
    void *memory;
    int error = cudaMalloc(&memory, (8 + 2 * made++) << 20);
    /* Not a tail call: this library is to be on the stack. */
    __asm__ volatile("" : : "r"(memory) : "memory");
    return error;
}

EXPORT int ncclCommInitRank(void **out, int size, struct unique_id id, int rank)
{
    int (*make)(void **, int, struct unique_id, int) = function("ncclCommInitRank");
    return take() || !make ? 1 : make(out, size, id, rank);
}

EXPORT int ncclCommInitRankConfig(void **out, int size, struct unique_id id, int rank, void *config)
{
    int (*make)(void **, int, struct unique_id, int, void *) = function("ncclCommInitRankConfig");
    return take() || !make ? 1 : make(out, size, id, rank, config);
}

EXPORT int ncclCommSplit(void *parent, int colour, int key, void **out, void *config)
{
    int (*split)(void *, int, int, void **, void *) = function("ncclCommSplit");
    return take() || !split ? 1 : split(parent, colour, key, out, config);
}
