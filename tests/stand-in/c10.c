/* A stand-in for PyTorch's libc10: the function that tells of each block, with nothing behind it.
 * Enough to try memprobe on every Python without a PyTorch for each. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* c10::Device (c10/core/Device.h). */
struct device {
    int8_t type;
    int8_t index;
};

#define CUDA 1

/* c10::reportMemoryUsageToProfiler(void* ptr, int64_t alloc_size, size_t total_allocated,
 * size_t total_reserved, Device device) (c10/core/Allocator.h). */
__attribute__((noinline)) void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(
    void *ptr, int64_t alloc_size, size_t total_allocated, size_t total_reserved,
    struct device device)
{
    __asm__ volatile("" : : "r"(ptr), "r"(alloc_size), "r"(total_allocated), "r"(total_reserved),
                     "r"((int)device.type) : "memory");
}

/* c10::reportOutOfMemoryToProfiler(int64_t alloc_size, size_t total_allocated,
 * size_t total_reserved, Device device). */
__attribute__((noinline)) void _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE(
    int64_t alloc_size, size_t total_allocated, size_t total_reserved, struct device device)
{
    __asm__ volatile("" : : "r"(alloc_size), "r"(total_allocated), "r"(total_reserved),
                     "r"((int)device.type) : "memory");
}

/* What a block is known by: its number, of which it has as many units of 512 bytes. */
void allocate(uint64_t number)
{
    struct device device = {CUDA, 0};
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(
        (void *)(number << 32), number * 512, number * 512, number * 512, device);
}

struct task {
    uint64_t number;
    void (*callback)(void);
    int (*ensure)(void);
    void *(*save)(void);
    void (*restore)(void *);
    void (*release)(int);
};

static void *run(void *argument)
{
    struct task *task = argument;
    if (task->callback)
        task->callback();
    int state = 0;
    void *thread = NULL;
    if (task->ensure) {
        state = task->ensure();
        thread = task->save();
    }
    if (task->number)
        allocate(task->number);
    if (task->ensure) {
        task->restore(thread);
        task->release(state);
    }
    return NULL;
}

/* Runs the task on a thread that Python did not start, and waits for its end. */
int on_thread(struct task *task)
{
    pthread_t thread;
    int error = pthread_create(&thread, NULL, run, task);
    return error ? error : pthread_join(thread, NULL);
}
