/* Requests that CUDA cannot serve: one each of the runtime, the driver and a thread, then `no_memory GO COUNT` so many. */
#include <pthread.h>

#include "truth.h"

#define TOO_MUCH ((size_t)1 << 50)

OWN static void ask_the_runtime(void)
{
    void *pointer;
    MUST_NOT(cudaMalloc(&pointer, TOO_MUCH));
}

OWN static void ask_the_driver(void)
{
    const struct location_properties here = { .type = 1, .location_type = 1, .location = 0 };
    unsigned long long handle;
    MUST_NOT(cuMemCreate(&handle, TOO_MUCH, &here, 0));
}

OWN static void *ask_in_a_thread(void *unused)
{
    void *pointer;
    size_t pitch;
    MUST(cudaSetDevice(0));
    MUST_NOT(cudaMallocPitch(&pointer, &pitch, TOO_MUCH >> 10, 1 << 10));
    return unused;
}

int main(int count, char **arguments)
{
    void *pointer;
    pthread_t thread;
    if (count < 2)
        return 1;
    wait_for_the_test(arguments[1]);
    MUST(cudaSetDevice(0));
    MUST(cudaMalloc(&pointer, 1 << 20));
    held[DEVICE] += 1 << 20;
    ask_the_runtime();
    ask_the_driver();
    MUST(pthread_create(&thread, NULL, ask_in_a_thread, NULL));
    MUST(pthread_join(thread, NULL));
    for (int left = count > 2 ? atoi(arguments[2]) : 0; left > 0; left--)
        ask_the_runtime();
    /* Not for lack of memory. */
    MUST_NOT(cudaMalloc(NULL, 4096));
    print_truth();
    return 0;
}
