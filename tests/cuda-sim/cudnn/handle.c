/* cuDNN: the library's handle and version. */
#include <stdlib.h>

#include "cudnn_abi.h"

struct handle {
    void *stream;
};

EXPORT size_t cudnnGetVersion(void)
{
    return VERSION_MAJOR * VERSION_UNIT + VERSION_MINOR * 100 + VERSION_PATCH;
}

EXPORT size_t cudnnGetCudartVersion(void)
{
    return CUDA_MAJOR * 1000;
}

EXPORT int cudnnGetProperty(int property, int *value)
{
    static const int version[] = { VERSION_MAJOR, VERSION_MINOR, VERSION_PATCH };
    if (property < 0 || property > 2)
        return STATUS_BAD_PARAM;
    *value = version[property];
    return STATUS_SUCCESS;
}

EXPORT const char *cudnnGetErrorString(int status)
{
    return status ? "error of the simulated cuDNN" : "CUDNN_STATUS_SUCCESS";
}

EXPORT void cudnnGetLastErrorString(char *text, size_t length)
{
    if (length)
        *text = 0;
}

EXPORT int cudnnCreate(struct handle **out)
{
    *out = calloc(1, sizeof **out);
    return STATUS_SUCCESS;
}

EXPORT int cudnnDestroy(struct handle *handle)
{
    free(handle);
    return STATUS_SUCCESS;
}

EXPORT int cudnnSetStream(struct handle *handle, void *stream)
{
    handle->stream = stream;
    return STATUS_SUCCESS;
}

EXPORT int cudnnGetStream(const struct handle *handle, void **stream)
{
    *stream = handle->stream;
    return STATUS_SUCCESS;
}

#if LIBRARY_MAJOR < 9
/* The interface of cuDNN 7 for recurrent networks, which PyTorch before 2.2 uses, is not simulated:
 * a success without a result would hand it garbage. */
#define LACKS(name)                                                                                \
    EXPORT int name(void)                                                                          \
    {                                                                                              \
        return STATUS_NOT_SUPPORTED;                                                               \
    }

LACKS(cudnnGetRNNParamsSize)
LACKS(cudnnGetRNNWorkspaceSize)
LACKS(cudnnGetRNNTrainingReserveSize)
LACKS(cudnnGetRNNLinLayerMatrixParams)
LACKS(cudnnGetRNNLinLayerBiasParams)
#endif
