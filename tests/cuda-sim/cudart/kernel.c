/* Runtime API: kernels. They are registered and launched, and compute nothing. */
#include "hardware.h"
#include "runtime.h"
#include "toolkit.h"

/* dim3, vector_types.h */
struct dimensions {
    unsigned x, y, z;
};

struct call_configuration {
    struct dimensions grid, block;
    size_t shared;
    void *stream;
};

enum { CONFIGURATION_DEPTH = 16 };

static __thread struct call_configuration configurations[CONFIGURATION_DEPTH];
static __thread int configuration_count;

EXPORT void **__cudaRegisterFatBinary(void *)
{
    static void *handle;
    return &handle;
}

SUCCEEDS(__cudaRegisterFatBinaryEnd)
SUCCEEDS(__cudaUnregisterFatBinary)
SUCCEEDS(__cudaRegisterFunction)
SUCCEEDS(__cudaRegisterVar)

EXPORT unsigned __cudaPushCallConfiguration(struct dimensions grid, struct dimensions block,
                                            size_t shared, void *stream)
{
    if (configuration_count == CONFIGURATION_DEPTH)
        return CUDA_MISSING_CONFIGURATION;
    configurations[configuration_count++] =
        (struct call_configuration){ grid, block, shared, stream };
    return CUDA_OK;
}

EXPORT int __cudaPopCallConfiguration(struct dimensions *grid, struct dimensions *block,
                                      size_t *shared, void **stream)
{
    if (configuration_count == 0)
        return report(CUDA_MISSING_CONFIGURATION);
    const struct call_configuration *top = &configurations[--configuration_count];
    *grid = top->grid;
    *block = top->block;
    *shared = top->shared;
    *stream = top->stream;
    return CUDA_OK;
}

EXPORT int __cudaGetKernel(const void **out, const void *function)
{
    *out = function;
    return CUDA_OK;
}

SUCCEEDS(__cudaLaunchKernel)
SUCCEEDS(cudaLaunchKernel)
SUCCEEDS(cudaLaunchKernelExC)
SUCCEEDS(cudaLaunchCooperativeKernel)
SUCCEEDS(cudaFuncSetAttribute)
SUCCEEDS(cudaMemcpyToSymbol)

EXPORT int cudaFuncGetAttributes(struct function_attributes *out, const void *)
{
    *out = (struct function_attributes){
        .max_threads_per_block = MAX_THREADS_PER_BLOCK,
        .registers = 32,
        .ptx_version = sim_compute_capability(),
        .binary_version = sim_compute_capability(),
        .max_dynamic_shared = SHARED_PER_BLOCK,
    };
    return CUDA_OK;
}

static int blocks_that_fit(int threads)
{
    int blocks = threads > 0 ? MAX_THREADS_PER_MULTIPROCESSOR / threads : 1;
    return blocks > 0 ? blocks : 1;
}

EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int threads,
                                                         size_t)
{
    *blocks = blocks_that_fit(threads);
    return CUDA_OK;
}

EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *,
                                                                  int threads, size_t, unsigned)
{
    *blocks = blocks_that_fit(threads);
    return CUDA_OK;
}

/* Device variables share one place: no kernel reads them. */
EXPORT int cudaGetSymbolAddress(void **out, const void *)
{
    static char variables[2 << 20];
    *out = variables;
    return CUDA_OK;
}
