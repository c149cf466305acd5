/* Driver API: looking functions up by name, and naming errors. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "driver.h"
#include "state.h"

/* The newest version of a driver function: cuMemAlloc is cuMemAlloc_v2. */
static void *newest(const char *name)
{
    static const char *const suffixes[] = { "_v4", "_v3", "_v2", "" };
    Dl_info self;
    if (!dladdr((void *)newest, &self))
        return NULL;
    void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return NULL;
    void *found = NULL;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes && !found; i++) {
        char symbol[128];
        snprintf(symbol, sizeof symbol, "%s%s", name, suffixes[i]);
        found = dlsym(library, symbol);
    }
    dlclose(library);
    return found;
}

ENTRY(int, cuGetProcAddress_v2, const char *name, void **function, int version, uint64_t, int *status)
{
    *function = newest(name);
    if (status)
        *status = *function ? ENTRY_POINT_FOUND : ENTRY_POINT_NOT_FOUND;
    sim_trace("cuGetProcAddress %s %d -> %p", name, version, *function);
    return *function ? CUDA_OK : CUDA_NOT_FOUND;
}

ENTRY(int, cuGetErrorString, int error, const char **text)
{
    switch ((enum cuda_error)error) {
    case CUDA_OK: *text = "no error"; break;
    case CUDA_OUT_OF_MEMORY: *text = "out of memory"; break;
    case CUDA_NOT_SUPPORTED: *text = "operation not supported"; break;
    default: *text = "error of the simulated CUDA"; break;
    }
    return CUDA_OK;
}
