/* What the files of libcuda.so.1 share among themselves. */
#pragma once

#include <pthread.h>

#include "entry.h"
#include "simulation.h"

struct settings {
    /* GPUs of the machine, those that the process sees, and the GPU behind each of its ordinals. */
    int gpus;
    int devices;
    int gpu_of[MAX_DEVICES];
    size_t capacity;
    size_t context_bytes;
    int compute_capability;
    bool real_copies;
    uint64_t event_delay_ns;
    unsigned call_us;
    unsigned long fail_malloc;
    unsigned long fail_every;
};

/* The environment's settings, read once. */
const struct settings *settings(void);

/* Gives out the primary context of a device, which cuDevicePrimaryCtxRetain does. */
struct context;
int retain_primary_context(struct context **out, int device);

/* Guards the ranges, the mappings and the bytes used. */
extern pthread_mutex_t memory_lock;

/* Takes bytes of a device, if it has so many left. With memory_lock held. */
bool take_bytes(int device, size_t size);
void give_bytes_back(int device, size_t size);

/* Address space of `size` bytes, aligned; NULL where the system has none. */
void *reserve_address_space(size_t size, size_t alignment, int protection);

/* Enters a range in the index or removes it. With memory_lock held. */
void insert_range(struct memory_range range, size_t charge);
void remove_range(const void *base);
bool lookup_range(const void *pointer, struct memory_range *out);

enum { PAGE_2M = 2 << 20 };

/* Lets other processes know what this one has taken of a device by now. */
void share_used(int device);

/* A call that suspends with the process. It waits while the process is suspended; nested calls do not. */
void begin_call(void);
void end_call(void);
