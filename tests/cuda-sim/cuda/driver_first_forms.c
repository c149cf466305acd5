/* Driver API: contexts by the first forms of functions that have a _v2 today, and by those that are
 * deprecated. */
#include "bodies.h"
#include "simulation.h"

int cuCtxCreate_v2(void **out, unsigned flags, int device) BODY(cuCtxCreate_v2);
int cuCtxDestroy_v2(void *context) BODY(cuCtxDestroy_v2);
int cuCtxGetCurrent(void **out) BODY(cuCtxGetCurrent);
int cuCtxPushCurrent_v2(void *context) BODY(cuCtxPushCurrent_v2);
int cuCtxPopCurrent_v2(void **out) BODY(cuCtxPopCurrent_v2);
int cuDevicePrimaryCtxRelease_v2(int device) BODY(cuDevicePrimaryCtxRelease_v2);
int cuDevicePrimaryCtxReset_v2(int device) BODY(cuDevicePrimaryCtxReset_v2);

ENTRY(int, cuCtxCreate, void **out, unsigned flags, int device)
{
    return cuCtxCreate_v2(out, flags, device);
}

ENTRY(int, cuCtxDestroy, void *context)
{
    return cuCtxDestroy_v2(context);
}

ENTRY(int, cuCtxPushCurrent, void *context)
{
    return cuCtxPushCurrent_v2(context);
}

ENTRY(int, cuCtxPopCurrent, void **out)
{
    return cuCtxPopCurrent_v2(out);
}

ENTRY(int, cuDevicePrimaryCtxRelease, int device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

ENTRY(int, cuDevicePrimaryCtxReset, int device)
{
    return cuDevicePrimaryCtxReset_v2(device);
}

/* How often a context was attached; of a few at most. */
static struct {
    void *context;
    int count;
} attached[8];

ENTRY(int, cuCtxAttach, void **out, unsigned)
{
    void *context = NULL;
    cuCtxGetCurrent(&context);
    if (!context)
        return CUDA_INVALID_CONTEXT;
    for (int i = 0; i < 8; i++) {
        if (attached[i].context && attached[i].context != context)
            continue;
        attached[i].context = context;
        attached[i].count++;
        *out = context;
        return CUDA_OK;
    }
    return CUDA_INVALID_VALUE;
}

ENTRY(int, cuCtxDetach, void *context)
{
    for (int i = 0; i < 8; i++) {
        if (attached[i].context != context || attached[i].count == 0)
            continue;
        attached[i].count--;
        return CUDA_OK;
    }
    return cuCtxDestroy_v2(context);
}
