/* Two threads that allocate and free in turns as fast as they can: each gets addresses that the other has just freed. */
#include <pthread.h>
#include <sched.h>

#include "truth.h"

enum { ROUNDS = 10000, ROUNDS_PER_YIELD = 16 };

static const size_t sizes[2] = { 4096, 8192 };
static pthread_barrier_t both_run;

OWN static void *allocate_and_free(void *size)
{
    void *pointer;
    pthread_barrier_wait(&both_run);
    for (int round = 0; round < ROUNDS; round++) {
        MUST(cudaMalloc(&pointer, *(const size_t *)size));
        MUST(cudaFree(pointer));
        /* On a busy machine one processor may have to do for both threads. */
        if (round % ROUNDS_PER_YIELD == 0)
            sched_yield();
    }
    MUST(cudaMalloc(&pointer, *(const size_t *)size));
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    wait_for_the_test(arguments[1]);
    pthread_t threads[2];
    pthread_barrier_init(&both_run, NULL, 2);
    for (int i = 0; i < 2; i++) {
        pthread_create(&threads[i], NULL, allocate_and_free, (void *)&sizes[i]);
        held[DEVICE] += sizes[i];
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    print_truth();
}
