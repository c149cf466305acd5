/* Where CUDA 12's and 13's runtimes differ. Everything else in this folder is common to both.
 *
 * Known differences, for whoever adds 12 (driver_types.h and cuda_runtime_api.h of each):
 *   - cudaDeviceProp: 12 has clockRate, deviceOverlap, kernelExecTimeoutEnabled, computeMode,
 *     maxTexture1DLinear, memoryClockRate, singleToDoublePrecisionPerfRatio and
 *     cooperativeMultiDeviceLaunch among the members, and ends earlier;
 *   - 12 publishes cudaGetDeviceProperties_v2 and cudaStreamGetCaptureInfo_v2/_v3, 13 the names
 *     without a version and with the newest signature;
 *   - 12 launches with cudaLaunchKernel, 13 with __cudaGetKernel and __cudaLaunchKernel. */
#pragma once

#include <stddef.h>

#if CUDA_MAJOR != 13
#error "only the runtime of CUDA 13 is written yet: add the differences listed in this file"
#endif

#define RUNTIME_VERSION 13020

/* cudaDeviceProp, driver_types.h of CUDA 13 */
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
    size_t constant_memory;
    int major;
    int minor;
    size_t texture_alignment;
    size_t texture_pitch_alignment;
    int multiprocessors;
    int integrated;
    int maps_host_memory;
    int textures_and_surfaces[38];
    size_t surface_alignment;
    int concurrent_kernels;
    int ecc;
    int pci_bus;
    int pci_device;
    int pci_domain;
    int tcc_driver;
    int async_engines;
    int unified_addressing;
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
    int pageable_access;
    int concurrent_managed_access;
    int compute_preemption;
    int host_pointer_for_registered;
    int cooperative_launch;
    size_t shared_per_block_optin;
    int pageable_access_by_host_tables;
    int direct_managed_access;
    int blocks_per_multiprocessor;
    int access_policy_window;
    size_t shared_reserved_per_block;
    int host_register;
    int sparse_arrays;
    int host_register_read_only;
    int timeline_semaphores;
    int memory_pools;
    int reserved[71];
};
_Static_assert(sizeof(struct device_properties) == 1008, "size of cudaDeviceProp");
