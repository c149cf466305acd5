/* Driver API: modules and kernels. Everything loads; a launch does nothing. */
#include "state.h"

/* A handle that nothing looks behind. */
static void *new_handle(void)
{
    static uintptr_t last = 0x10000;
    return (void *)__atomic_add_fetch(&last, 16, __ATOMIC_RELAXED);
}

ENTRY(int, cuModuleLoad, void **module, const char *)
{
    *module = new_handle();
    return CUDA_OK;
}

ENTRY(int, cuModuleLoadData, void **module, const void *)
{
    *module = new_handle();
    return CUDA_OK;
}

ENTRY(int, cuModuleLoadDataEx, void **module, const void *, unsigned, void *, void **)
{
    *module = new_handle();
    return CUDA_OK;
}

ENTRY(int, cuModuleGetFunction, void **function, void *, const char *name)
{
    sim_trace("cuModuleGetFunction %s", name);
    *function = new_handle();
    return CUDA_OK;
}

ENTRY(int, cuModuleGetLoadingMode, int *mode)
{
    enum { LAZY_LOADING = 2 }; /* CU_MODULE_LAZY_LOADING, cuda.h */
    *mode = LAZY_LOADING;
    return CUDA_OK;
}

/* CUfunction_attribute, cuda.h */
enum function_attribute {
    FUNCTION_MAX_THREADS_PER_BLOCK = 0,
    FUNCTION_NUM_REGS = 4,
    FUNCTION_PTX_VERSION = 5,
    FUNCTION_BINARY_VERSION = 6,
};

ENTRY(int, cuFuncGetAttribute, int *value, int attribute, void *)
{
    *value = 0;
    switch ((enum function_attribute)attribute) {
    case FUNCTION_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case FUNCTION_NUM_REGS: *value = 32; break;
    case FUNCTION_PTX_VERSION:
    case FUNCTION_BINARY_VERSION: *value = sim_compute_capability(); break;
    }
    return CUDA_OK;
}

ENTRY(int, cuOccupancyMaxActiveBlocksPerMultiprocessor, int *blocks, void *, int, size_t)
{
    *blocks = 2;
    return CUDA_OK;
}

ENTRY(int, cuOccupancyMaxActiveClusters, int *clusters, void *, const void *)
{
    *clusters = 1;
    return CUDA_OK;
}

ENTRY(int, cuLinkCreate_v2, unsigned, void *, void **, void **state)
{
    *state = new_handle();
    return CUDA_OK;
}

ENTRY(int, cuLinkComplete, void *, void **image, size_t *size)
{
    static char nothing[64];
    *image = nothing;
    if (size)
        *size = sizeof nothing;
    return CUDA_OK;
}

ENTRY_SUCCEEDS(cuModuleUnload)
ENTRY_SUCCEEDS(cuFuncSetAttribute)
ENTRY_SUCCEEDS(cuFuncSetCacheConfig)
ENTRY_SUCCEEDS(cuLaunchKernel)
ENTRY_SUCCEEDS(cuLaunchKernelEx)
ENTRY_SUCCEEDS(cuLaunchCooperativeKernel)
ENTRY_SUCCEEDS(cuLinkAddData_v2)
