/* A program and two libraries get memory at once, each on threads of its own. */
#include <pthread.h>

#include "truth.h"

enum { ROUNDS = 200, OWN_SIZE = 1001, ONE_SIZE = 20002, TWO_SIZE = 300004 };

int one_start(size_t size);
int two_start(size_t size);

static void *use_one(void *)
{
    for (int i = 0; i < ROUNDS; i++)
        MUST(one_start(ONE_SIZE));
    return NULL;
}

static void *use_two(void *)
{
    for (int i = 0; i < ROUNDS; i++)
        MUST(two_start(TWO_SIZE));
    return NULL;
}

OWN static void *use_none(void *)
{
    for (int i = 0; i < ROUNDS; i++) {
        void *kept, *freed;
        MUST(cudaMalloc(&kept, OWN_SIZE));
        MUST(cudaMalloc(&freed, OWN_SIZE));
        MUST(cudaFree(freed));
    }
    return NULL;
}

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    wait_for_the_test(words[1]);
    void *(*const work[])(void *) = { use_one, use_two, use_none };
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        MUST(pthread_create(&threads[i], NULL, work[i], NULL));
    for (int i = 0; i < 3; i++)
        MUST(pthread_join(threads[i], NULL));
    held[DEVICE] = (size_t)ROUNDS * (OWN_SIZE + ONE_SIZE + TWO_SIZE);
    held[PINNED] = (size_t)ROUNDS * (ONE_SIZE / 2 + TWO_SIZE / 2);
    print_truth();
    return 0;
}
