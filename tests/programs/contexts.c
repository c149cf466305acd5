/* Memory of two devices, by threads that get there in different ways. Each allocation has a size of its own,
 * and a line says on which device it is. */
#include <pthread.h>

#include "truth.h"

enum { DEVICES = 2 };

int cuCtxCreate(void **out, unsigned flags, int device);
int cuCtxAttach(void **out, unsigned flags);
int cuCtxDetach(void *context);
int cuCtxSetCurrent(void *context);
int cuCtxGetCurrent(void **out);
int cuCtxPushCurrent(void *context);
int cuCtxPopCurrent(void **out);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **out);
int cuGreenCtxCreate(void **out, void *resources, int device, unsigned flags);
int cuCtxFromGreenCtx(void **out, void *green);
int cuGreenCtxDestroy(void *green);
int cuDevicePrimaryCtxRetain(void **out, int device);
int cuDevicePrimaryCtxRelease(int device);
int cuDevicePrimaryCtxReset(int device);
/* A library with a copy of the runtime of its own. */
int copy_start_on(int device, size_t size);

static size_t next_size = 100000;
static size_t by_device[DEVICES];
static void *primary[DEVICES];

static size_t size_on(int device, const char *how)
{
    next_size += 1002;
    printf("on %d %zu %s\n", device, next_size, how);
    return next_size;
}

static void by_the_driver(int device)
{
    device_pointer pointer;
    size_t size = size_on(device, "driver");
    MUST(cuMemAlloc_v2(&pointer, size));
    by_device[device] += size;
}

static void by_the_runtime(int device)
{
    void *pointer;
    size_t size = size_on(device, "runtime");
    MUST(cudaMalloc(&pointer, size));
    by_device[device] += size;
}

static void by_the_copy(int device)
{
    size_t size = size_on(device, "copy");
    MUST(copy_start_on(device, size));
    by_device[device] += size;
}

/* The contexts come from elsewhere: nothing on this thread says whose they are. */
static void *sets_contexts(void *)
{
    void *popped;
    MUST(cuCtxSetCurrent(primary[1]));
    by_the_driver(1);
    by_the_runtime(1);
    MUST(cuCtxPushCurrent(primary[0]));
    by_the_driver(0);
    MUST(cuCtxPushCurrent_v2(primary[1]));
    by_the_runtime(1);
    MUST(cuCtxPopCurrent_v2(&popped));
    by_the_driver(0);
    MUST(cuCtxPopCurrent(NULL));
    by_the_driver(1);
    MUST(cuCtxSetCurrent(primary[0]));
    by_the_runtime(0);
    return NULL;
}

static void *uses_the_copy(void *)
{
    by_the_copy(1);
    by_the_copy(0);
    by_the_copy(1);
    return NULL;
}

static void *has_its_own_context(void *)
{
    void *context, *same;
    device_pointer pointer;
    MUST(cuCtxCreate(&context, 0, 1));
    MUST(cuCtxAttach(&same, 0));
    MUST(cuMemAlloc_v2(&pointer, size_on(1, "driver")));
    MUST(cuCtxDetach(same));
    MUST(cuMemAlloc_v2(&pointer, size_on(1, "driver")));
    /* Takes both along. */
    MUST(cuCtxDetach(context));
    return NULL;
}

static void *has_a_green_context(void *)
{
    void *green, *context;
    MUST(cuGreenCtxCreate(&green, NULL, 1, 0));
    MUST(cuCtxFromGreenCtx(&context, green));
    MUST(cuCtxSetCurrent(context));
    by_the_driver(1);
    MUST(cuGreenCtxDestroy(green));
    return NULL;
}

static void run(void *(*work)(void *))
{
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, work, NULL));
    MUST(pthread_join(thread, NULL));
}

int main(int count, char **words)
{
    void *context;
    if (count < 2)
        return 2;
    wait_for_the_test(words[1]);
    for (int device = 0; device < DEVICES; device++) {
        MUST(cudaSetDevice(device));
        MUST(cuCtxGetCurrent(&primary[device]));
        by_the_runtime(device);
        by_the_driver(device);
    }
    run(sets_contexts);
    run(uses_the_copy);
    run(has_its_own_context);
    run(has_a_green_context);
    MUST(cudaSetDevice(0));
    by_the_runtime(0);
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    MUST(cuDevicePrimaryCtxReset(1));
    MUST(cuDevicePrimaryCtxRelease(1));
    by_device[1] = 0;
    MUST(cudaSetDevice(1));
    by_the_runtime(1);
    held[DEVICE] = by_device[0] + by_device[1];
    print_truth();
    return 0;
}
