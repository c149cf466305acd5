/* The simulated devices. Their state lives in libcuda.so.1; the other libraries call it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "export.h"

enum { MAX_DEVICES = 16 };

/* ---- devices */

int sim_device_count(void);
/* GPUs of the machine, of which CUDA_VISIBLE_DEVICES may hide some, and the one behind a device. */
int sim_gpu_count(void);
int sim_gpu_of(int device);
/* What tells a GPU from others. */
void sim_uuid(unsigned char uuid[16], int gpu);
/* Bytes of memory a device has, and bytes that are taken. */
size_t sim_capacity(int device);
size_t sim_used(int device);
/* Who has taken how much of a GPU: of all processes where CUDASIM_SHARED names a folder, of this
 * one alone otherwise. Fills no more than `room` and returns how many there are. */
struct sim_user {
    int pid;
    uint64_t used;
};
int sim_users(int gpu, struct sim_user *out, int room);
/* 80 stands for 8.0. */
int sim_compute_capability(void);
/* The device of the calling thread, and its context. */
int sim_current_device(void);
void sim_set_current_device(int device);
/* "0000:01:00.0" for GPU 0. */
void sim_pci_bus_id(char *text, size_t length, int gpu);
/* The GPU of such a text, or -1. */
int sim_gpu_of_pci_bus_id(const char *text);

/* ---- settings that the runtime heeds */

/* Whether the cudaMalloc that is about to run is to fail. Counts the calls. */
bool sim_malloc_fails(void);

/* ---- memory */

enum memory_kind {
    MEMORY_DEVICE,     /* cudaMalloc */
    MEMORY_HOST,       /* cudaHostAlloc */
    MEMORY_MANAGED,    /* cudaMallocManaged */
    MEMORY_REGISTERED, /* cudaHostRegister */
    MEMORY_MAPPED,     /* cuMemMap */
};

struct memory_range {
    char *base;
    size_t size;
    int device;
    enum memory_kind kind;
    /* The context that it goes with; NULL for the device's primary one. */
    void *context;
};

/* CUDA_OK or CUDA_OUT_OF_MEMORY. Device memory comes in whole 2 MiB pages. */
int sim_allocate(int device, size_t size, enum memory_kind kind, void **out);
/* CUDA_INVALID_VALUE where no range of that kind starts at `base`. */
int sim_free(void *base, enum memory_kind kind);
/* Frees what was allocated in a context; NULL stands for the primary one of the device. */
void sim_free_context(int device, const void *context);
/* The context of the calling thread, NULL for a primary one. */
void *sim_current_context(void);
/* The range that `pointer` lies in. */
bool sim_find(const void *pointer, struct memory_range *out);
/* Copies or fills, or drops the write where CUDASIM_COPY is 0 and the target is on a device. */
void sim_copy(void *to, const void *from, size_t size);
void sim_fill(void *to, int byte, size_t size);

/* ---- streams and events */

struct sim_stream {
    uint64_t id;
    int device;
    int priority;
    unsigned flags;
    bool capturing;
    uint64_t capture_id;
    void *graph;
};

struct sim_event {
    uint64_t recorded_ns;
    uint64_t ready_ns;
};

/* The stream a handle stands for; 0, 1 and 2 are the default streams of the current device. */
struct sim_stream *sim_stream_of(void *handle);
struct sim_stream *sim_stream_create(unsigned flags, int priority);
void sim_event_record(struct sim_event *event);
bool sim_event_ready(const struct sim_event *event);
void sim_event_wait(const struct sim_event *event);

/* ---- trace */

void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
