/* Allocators that get large blocks from CUDA, with the symbols of RMM's and XLA's, and one direct call of RMM's. */
#include "truth.h"

enum { RMM_SIZE = 3 << 20, XLA_SIZE = 5 << 20, DIRECT_SIZE = 7 << 20 };

/* rmm::mr::cuda_memory_resource::do_allocate(unsigned long) */
int direct(size_t size) __asm__("_ZN3rmm2mr20cuda_memory_resource11do_allocateEm");
/* rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource>::expand_pool(unsigned long) */
int expand(size_t size)
    __asm__("_ZN3rmm2mr20pool_memory_resourceINS0_20cuda_memory_resourceEE11expand_poolEm");
/* tsl::BFCAllocator::Extend(unsigned long) */
int extend(size_t size) __asm__("_ZN3tsl12BFCAllocator6ExtendEm");

__attribute__((noinline, visibility("default"))) int direct(size_t size)
{
    void *pointer;
    /* Not a tail call: this frame is to be on the stack. */
    int error = cudaMalloc(&pointer, size);
    __asm__ volatile("" : : "r"(pointer) : "memory");
    return error;
}

__attribute__((noinline, visibility("default"))) int expand(size_t size)
{
    int error = direct(size);
    __asm__ volatile("" : : : "memory");
    return error;
}

__attribute__((noinline, visibility("default"))) int extend(size_t size)
{
    void *pointer;
    int error = cudaMalloc(&pointer, size);
    __asm__ volatile("" : : "r"(pointer) : "memory");
    return error;
}

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    wait_for_the_test(words[1]);
    MUST(expand(RMM_SIZE));
    MUST(extend(XLA_SIZE));
    MUST(direct(DIRECT_SIZE));
    held[DEVICE] = (size_t)RMM_SIZE + XLA_SIZE + DIRECT_SIZE;
    print_truth();
    return 0;
}
