/* The part of CUDA's binary interface that PyTorch touches, written out by hand.
 *
 * Names and numbers are those of cuda.h (driver) and driver_types.h (runtime) of the CUDA toolkit.
 * Since CUDA 10.1 the errors of both have the same numbers. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* CUresult in cuda.h, cudaError in driver_types.h */
enum cuda_error {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_MISSING_CONFIGURATION = 52,
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_OPERATING_SYSTEM = 304,
    CUDA_ILLEGAL_STATE = 401,
    CUDA_NOT_FOUND = 500,
    CUDA_NOT_READY = 600,
    CUDA_NOT_SUPPORTED = 801,
    CUDA_UNKNOWN = 999,
};

/* CUdeviceptr, cuda.h */
typedef unsigned long long device_pointer;

/* CUdevice_attribute, cuda.h; cudaDeviceAttr has the same numbers */
enum device_attribute {
    ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
    ATTRIBUTE_MAX_BLOCK_DIM_X = 2,
    ATTRIBUTE_MAX_BLOCK_DIM_Y = 3,
    ATTRIBUTE_MAX_BLOCK_DIM_Z = 4,
    ATTRIBUTE_MAX_GRID_DIM_X = 5,
    ATTRIBUTE_MAX_GRID_DIM_Y = 6,
    ATTRIBUTE_MAX_GRID_DIM_Z = 7,
    ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
    ATTRIBUTE_TOTAL_CONSTANT_MEMORY = 9,
    ATTRIBUTE_WARP_SIZE = 10,
    ATTRIBUTE_MAX_PITCH = 11,
    ATTRIBUTE_MAX_REGISTERS_PER_BLOCK = 12,
    ATTRIBUTE_CLOCK_RATE = 13,
    ATTRIBUTE_TEXTURE_ALIGNMENT = 14,
    ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19,
    ATTRIBUTE_CONCURRENT_KERNELS = 31,
    ATTRIBUTE_PCI_BUS_ID = 33,
    ATTRIBUTE_MEMORY_CLOCK_RATE = 36,
    ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37,
    ATTRIBUTE_L2_CACHE_SIZE = 38,
    ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
    ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED = 78,
    ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
    ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
    ATTRIBUTE_MANAGED_MEMORY = 83,
    ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED = 90,
    ATTRIBUTE_COOPERATIVE_LAUNCH = 95,
    ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    ATTRIBUTE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
    ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK = 111,
    ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
};

/* CUmemAllocationProp with its CUmemLocation, cuda.h */
struct allocation_properties {
    int type;
    int handle_types;
    int location_type;
    int location_id;
    void *win32_metadata;
    unsigned char flags[8];
};
_Static_assert(sizeof(struct allocation_properties) == 32, "layout of CUmemAllocationProp");

enum {
    LOCATION_DEVICE = 1,       /* CU_MEM_LOCATION_TYPE_DEVICE */
    HANDLE_FILE_DESCRIPTOR = 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
};

/* CUdriverProcAddressQueryResult, cuda.h; cudaDriverEntryPointQueryResult has the same numbers */
enum entry_point_status { ENTRY_POINT_FOUND = 0, ENTRY_POINT_NOT_FOUND = 1 };

/* CUstreamCaptureStatus, cuda.h; cudaStreamCaptureStatus has the same numbers */
enum capture_status { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1 };
