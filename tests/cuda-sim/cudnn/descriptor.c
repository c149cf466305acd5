/* cuDNN: descriptors of the older interface, and the sizes of workspaces. */
#include <stdlib.h>
#include <string.h>

#include "cudnn_abi.h"

/* Room for any descriptor of this library. */
enum { DESCRIPTOR_BYTES = 512 };
_Static_assert(sizeof(struct tensor) <= DESCRIPTOR_BYTES, "a tensor fits a descriptor");

#define DESCRIPTOR(kind)                                                                           \
    EXPORT int cudnnCreate##kind##Descriptor(void **out)                                           \
    {                                                                                              \
        *out = calloc(1, DESCRIPTOR_BYTES);                                                        \
        return STATUS_SUCCESS;                                                                     \
    }                                                                                              \
    EXPORT int cudnnDestroy##kind##Descriptor(void *descriptor)                                    \
    {                                                                                              \
        free(descriptor);                                                                          \
        return STATUS_SUCCESS;                                                                     \
    }

DESCRIPTOR(Activation)
DESCRIPTOR(CTCLoss)
DESCRIPTOR(Convolution)
DESCRIPTOR(Dropout)
DESCRIPTOR(Filter)
DESCRIPTOR(Pooling)
DESCRIPTOR(RNN)
DESCRIPTOR(RNNData)
DESCRIPTOR(SpatialTransformer)
DESCRIPTOR(Tensor)

EXPORT int cudnnSetTensorNdDescriptor(struct tensor *tensor, int data_type, int count,
                                      const int *dimensions, const int *strides)
{
    if (count < 0 || count > MAX_DIMENSIONS)
        return STATUS_NOT_SUPPORTED;
    tensor->data_type = data_type;
    tensor->dimension_count = count;
    memcpy(tensor->dimensions, dimensions, (size_t)count * sizeof *dimensions);
    memcpy(tensor->strides, strides, (size_t)count * sizeof *strides);
    return STATUS_SUCCESS;
}

/* How many of the `asked` dimensions there are. */
static size_t dimensions_given(int asked)
{
    if (asked < 0)
        return 0;
    return asked < MAX_DIMENSIONS ? (size_t)asked : MAX_DIMENSIONS;
}

EXPORT int cudnnGetTensorNdDescriptor(const struct tensor *tensor, int asked, int *data_type,
                                      int *count, int *dimensions, int *strides)
{
    *data_type = tensor->data_type;
    *count = tensor->dimension_count;
    memcpy(dimensions, tensor->dimensions, dimensions_given(asked) * sizeof *dimensions);
    memcpy(strides, tensor->strides, dimensions_given(asked) * sizeof *strides);
    return STATUS_SUCCESS;
}

EXPORT int cudnnSetFilterNdDescriptor(struct tensor *filter, int data_type, int format, int count,
                                      const int *dimensions)
{
    if (count < 0 || count > MAX_DIMENSIONS)
        return STATUS_NOT_SUPPORTED;
    filter->data_type = data_type;
    filter->format = format;
    filter->dimension_count = count;
    memcpy(filter->dimensions, dimensions, (size_t)count * sizeof *dimensions);
    return STATUS_SUCCESS;
}

EXPORT int cudnnGetFilterNdDescriptor(const struct tensor *filter, int asked, int *data_type,
                                      int *format, int *count, int *dimensions)
{
    *data_type = filter->data_type;
    *format = filter->format;
    *count = filter->dimension_count;
    memcpy(dimensions, filter->dimensions, dimensions_given(asked) * sizeof *dimensions);
    return STATUS_SUCCESS;
}

EXPORT int cudnnDropoutGetStatesSize(void *, size_t *size)
{
    *size = WORKSPACE_BYTES;
    return STATUS_SUCCESS;
}

EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *, int, int, void *,
                                                                    void *, void *, void *, void *,
                                                                    size_t *size)
{
    *size = NORMALIZATION_BYTES;
    return STATUS_SUCCESS;
}

EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *, int, int, void *, void *,
                                                             void *, void *, void *, void *, void *,
                                                             size_t *size)
{
    *size = NORMALIZATION_BYTES;
    return STATUS_SUCCESS;
}

EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *, int, int, void *, void *,
                                                                size_t *size)
{
    *size = NORMALIZATION_BYTES;
    return STATUS_SUCCESS;
}
