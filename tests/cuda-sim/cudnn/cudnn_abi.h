/* Numbers of cudnn_version.h, cudnn_graph.h and cudnn_adv.h (cuDNN 9), and of cudnn_version.h and
 * cudnn_ops_infer.h (cuDNN 8). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "export.h"

/* PyTorch refuses a cuDNN older than the one it was compiled with. */
#if LIBRARY_MAJOR >= 9
enum { VERSION_MAJOR = 9, VERSION_MINOR = 28, VERSION_PATCH = 0, VERSION_UNIT = 10000 };
enum { STATUS_SUCCESS = 0, STATUS_BAD_PARAM = 2000, STATUS_NOT_SUPPORTED = 3000 };
#else
enum { VERSION_MAJOR = 8, VERSION_MINOR = 9, VERSION_PATCH = 7, VERSION_UNIT = 1000 };
enum { STATUS_SUCCESS = 0, STATUS_BAD_PARAM = 3, STATUS_NOT_SUPPORTED = 9 };
#endif

/* cudnnDataType_t; the others that PyTorch uses are 4 bytes wide */
enum data_type { DATA_DOUBLE = 1, DATA_HALF = 2, DATA_BFLOAT16 = 9 };

/* Workspaces that are asked for; the real ones depend on the algorithm. */
enum { WORKSPACE_BYTES = 1 << 20, NORMALIZATION_BYTES = 1 << 16 };

enum { MAX_DIMENSIONS = 8 };

/* A tensor or filter descriptor. */
struct tensor {
    int data_type;
    int format;
    int dimension_count;
    int dimensions[MAX_DIMENSIONS];
    int strides[MAX_DIMENSIONS];
};
