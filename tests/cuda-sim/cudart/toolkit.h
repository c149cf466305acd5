/* Where the runtimes of CUDA 11, 12 and 13 differ. Everything else in this folder is common to them,
 * but for the names with a version (stream.c, device.c): 12 publishes the newest signature of a
 * function under a name with _v2 or _v3, 13 under the name without. */
#pragma once

#include <stddef.h>

/* Sizes of structures: driver_types.h of CUDA 11.7, 12.1, 12.8 and 13.0. A program has room for no more. */
#if CUDA_MAJOR == 13
#define RUNTIME_VERSION 13020
#define DEVICE_PROPERTIES_BYTES 1008
#define POINTER_ATTRIBUTES_BYTES 88
#define FUNCTION_ATTRIBUTES_BYTES 144
#elif CUDA_MAJOR == 12
#define RUNTIME_VERSION 12080
#define DEVICE_PROPERTIES_BYTES 1032
#define POINTER_ATTRIBUTES_BYTES 24
#define FUNCTION_ATTRIBUTES_BYTES 144
#elif CUDA_MAJOR == 11
#define RUNTIME_VERSION 11070
#define DEVICE_PROPERTIES_BYTES 728
#define POINTER_ATTRIBUTES_BYTES 24
#define FUNCTION_ATTRIBUTES_BYTES 56
#else
#error "the runtime of this CUDA is not written: add where it differs to this file"
#endif

/* The newest signature of a function that 12 publishes with a version and 13 without. */
#if CUDA_MAJOR > 12
#define NEWEST(name, version) name
#else
#define NEWEST(name, version) name##version
#endif

/* 12 keeps the name without a version for programs that were compiled with 11. */
#if CUDA_MAJOR == 12
#define cudaGetDeviceProperties cudaGetDeviceProperties_v2
#endif

/* cudaDeviceProp, driver_types.h of CUDA 11.7, 12.1 to 12.8, and 13 */
struct device_properties {
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned luid_node_mask;
    size_t total_memory;
    size_t shared_per_block;
    int registers_per_block;
    int warp_size;
    size_t pitch;
    int threads_per_block;
    int block_dimensions[3];
    int grid_dimensions[3];
#if CUDA_MAJOR < 13
    int clock_khz;
#endif
    size_t constant_memory;
    int major;
    int minor;
    size_t texture_alignment;
    size_t texture_pitch_alignment;
#if CUDA_MAJOR < 13
    int device_overlap;
#endif
    int multiprocessors;
#if CUDA_MAJOR < 13
    int kernel_timeout;
#endif
    int integrated;
    int maps_host_memory;
#if CUDA_MAJOR < 13
    int compute_mode;
    int textures_and_surfaces[40];
#else
    int textures_and_surfaces[39];
#endif
    size_t surface_alignment;
    int concurrent_kernels;
    int ecc;
    int pci_bus;
    int pci_device;
    int pci_domain;
    int tcc_driver;
    int async_engines;
    int unified_addressing;
#if CUDA_MAJOR < 13
    int memory_clock_khz;
#endif
    int memory_bus_bits;
    int l2_cache;
    int persisting_l2_cache;
    int threads_per_multiprocessor;
    int stream_priorities;
    int global_l1_cache;
    int local_l1_cache;
    size_t shared_per_multiprocessor;
    int registers_per_multiprocessor;
    int managed_memory;
    int multi_gpu_board[2];
    int host_atomics;
#if CUDA_MAJOR < 13
    int single_to_double_ratio;
#endif
    int pageable_access;
    int concurrent_managed_access;
    int compute_preemption;
    int host_pointer_for_registered;
    int cooperative_launch;
#if CUDA_MAJOR < 13
    int cooperative_multi_device_launch;
#endif
    size_t shared_per_block_optin;
    int pageable_access_by_host_tables;
    int direct_managed_access;
    int blocks_per_multiprocessor;
    int access_policy_window;
    size_t shared_reserved_per_block;
#if CUDA_MAJOR > 11
    int host_register;
    int sparse_arrays;
    int host_register_read_only;
    int timeline_semaphores;
    int memory_pools;
    int reserved[71];
#endif
};
_Static_assert(sizeof(struct device_properties) == DEVICE_PROPERTIES_BYTES, "size of cudaDeviceProp");

/* cudaPointerAttributes, driver_types.h */
struct pointer_attributes {
    int type;
    int device;
    void *device_pointer;
    void *host_pointer;
#if CUDA_MAJOR > 12
    long reserved[8];
#endif
};
_Static_assert(sizeof(struct pointer_attributes) == POINTER_ATTRIBUTES_BYTES,
               "size of cudaPointerAttributes");

/* cudaFuncAttributes, driver_types.h */
struct function_attributes {
    size_t shared;
    size_t constant;
    size_t local;
    int max_threads_per_block;
    int registers;
    int ptx_version;
    int binary_version;
    int cache_mode;
    int max_dynamic_shared;
    int preferred_carveout;
#if CUDA_MAJOR > 11
    int cluster_and_reserved[23];
#endif
};
_Static_assert(sizeof(struct function_attributes) == FUNCTION_ATTRIBUTES_BYTES,
               "size of cudaFuncAttributes");
