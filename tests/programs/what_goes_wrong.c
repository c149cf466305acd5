/* Calls that fail, that free twice, and that are left by a jump; contexts that are destroyed. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

#include "truth.h"

OWN static void failed_calls(void)
{
    void *pointer = NULL;
    MUST_NOT(cudaMalloc(&pointer, (size_t)1 << 50));
    MUST_NOT(cudaMalloc(NULL, 4096));
    MUST_NOT(cudaMallocAsync(&pointer, (size_t)1 << 50, NULL));
    MUST_NOT(cudaFree(&pointer));
    MUST_NOT(cudaFreeHost(&pointer));
    MUST_NOT(cudaHostUnregister(&pointer));
    MUST(cudaFree(NULL));
    MUST(cudaMalloc(&pointer, 0));
}

OWN static void double_frees(void)
{
    void *one, *two;
    MUST(cudaMalloc(&one, 111));
    MUST(cudaMalloc(&two, 222));
    MUST(cudaFree(one));
    MUST_NOT(cudaFree(one));
    MUST_NOT(cudaFreeAsync(one, NULL));
    MUST_NOT(cuMemFree_v2((uintptr_t)one));
    held[DEVICE] += 222;
}

static sigjmp_buf out;

static void jump(int number)
{
    siglongjmp(out, number);
}

/* The simulated cudaMalloc3D writes through its null pointer, and the handler never returns to it. */
OWN static void leave_by_a_jump(void)
{
    struct sigaction action = { .sa_handler = jump };
    sigaction(SIGSEGV, &action, NULL);
    if (sigsetjmp(out, 1) == 0) {
        cudaMalloc3D(NULL, (struct extent){ 0, 0, 0 });
        exit(4);
    }
}

/* Calls from far below on the stack, as from within the call that was left. */
OWN static void allocate_deep(int depth, size_t size)
{
    volatile char room[512];
    memset((char *)room, depth, sizeof room);
    if (depth > 0) {
        allocate_deep(depth - 1, size);
    } else {
        void *pointer;
        MUST(cudaMalloc(&pointer, size));
        held[DEVICE] += size;
    }
    room[0] = room[1];
}

OWN static void jumps(void)
{
    void *pointer;
    leave_by_a_jump();
    MUST(cudaMalloc(&pointer, 3333));
    held[DEVICE] += 3333;
    leave_by_a_jump();
    allocate_deep(16, 4444);
    leave_by_a_jump();
    MUST(cudaFree(pointer));
    held[DEVICE] -= 3333;
}

OWN static void destroyed_contexts(void)
{
    void *context, *host;
    device_pointer inside;
    MUST(cuCtxCreate_v2(&context, 0, 1));
    MUST(cuMemAlloc_v2(&inside, 55555));
    MUST(cuMemHostAlloc(&host, 66666, 0));
    MUST(cuCtxDestroy_v2(context));
    void *kept;
    MUST(cudaMalloc(&kept, 777));
    held[DEVICE] += 777;
}

static void *reset_device_1(void *)
{
    void *pointer;
    MUST(cudaSetDevice(1));
    MUST(cudaMalloc(&pointer, 888888));
    MUST(cudaMallocManaged(&pointer, 99999, 1));
    MUST(cudaDeviceReset());
    MUST(cudaMalloc(&pointer, 1234));
    held[DEVICE] += 1234;
    return NULL;
}

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    wait_for_the_test(words[1]);
    MUST(cudaSetDevice(0));
    failed_calls();
    double_frees();
    jumps();
    destroyed_contexts();
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, reset_device_1, NULL));
    MUST(pthread_join(thread, NULL));
    print_truth();
    return 0;
}
