/* Rewrites the entries of functions of the driver, as UCX does to hear of memory (src/ucm/bistro of
 * openucx/ucx): their first bytes become a jump to a hook, which counts the call and goes on to the
 * original. Arguments: GO-FILE before|after 5|12|13 careful|blind [CALL-FILE].
 *
 * 5: jmp rel32 to an island near by. 12: movabs to rax, jmp *rax, as UCX jumps far. 13: the same by r11.
 * careful, as UCX: copies the instructions that are overwritten, refuses where one is unknown (a
 * breakpoint is), and reaches the original through the copy. blind: overwrites without looking, and
 * reaches the original by its body. Without CALL-FILE the functions are called at once, with it when
 * that file is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "truth.h"

void *sim_body_of(const char *name);

enum { PAGE = 4096, ISLAND_BYTES = 128, ROUNDS = 10, BLOCK = 1 << 20, MAPPED = 2 << 20 };

/* In the order in which UCX has them. */
enum {
    ALLOC, ALLOC_MANAGED, ALLOC_PITCH, MAP, ALLOC_ASYNC, ALLOC_FROM_POOL, FREE, FREE_HOST, UNMAP, FREE_ASYNC,
    FUNCTIONS
};

typedef int (*function)(long, long, long, long, long);

static struct {
    const char *name;
    function original;
    bool rewritten;
    unsigned called, entered, worked;
} functions[FUNCTIONS] = {
    { .name = "cuMemAlloc_v2" },    { .name = "cuMemAllocManaged" },
    { .name = "cuMemAllocPitch_v2" }, { .name = "cuMemMap" },
    { .name = "cuMemAllocAsync" },  { .name = "cuMemAllocFromPoolAsync" },
    { .name = "cuMemFree_v2" },     { .name = "cuMemFreeHost" },
    { .name = "cuMemUnmap" },       { .name = "cuMemFreeAsync" },
};

#define HOOK(number)                                                                               \
    static int hook_##number(long a, long b, long c, long d, long e)                               \
    {                                                                                              \
        functions[number].entered++;                                                               \
        return functions[number].original(a, b, c, d, e);                                          \
    }
HOOK(0) HOOK(1) HOOK(2) HOOK(3) HOOK(4) HOOK(5) HOOK(6) HOOK(7) HOOK(8) HOOK(9)

static const function hooks[FUNCTIONS] = { hook_0, hook_1, hook_2, hook_3, hook_4,
                                           hook_5, hook_6, hook_7, hook_8, hook_9 };

static uint8_t *put(uint8_t *to, const void *from, size_t size)
{
    memcpy(to, from, size);
    return to + size;
}

/* jmp *0(%rip), and the address */
static uint8_t *put_far_jump(uint8_t *to, const void *target)
{
    to = put(to, (uint8_t[]){ 0xff, 0x25, 0, 0, 0, 0 }, 6);
    return put(to, &target, sizeof target);
}

/* Memory for code less than 2 GiB from a function. */
static uint8_t *map_near(const uint8_t *code)
{
    uintptr_t base = (uintptr_t)code & ~(uintptr_t)(PAGE - 1);
    for (uintptr_t away = 1 << 20; away < 1 << 30; away += 1 << 20) {
        void *wanted = (void *)(base - away);
        void *got = mmap(wanted, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (got == wanted)
            return got;
        if (got != MAP_FAILED)
            munmap(got, PAGE);
    }
    fprintf(stderr, "no room near the driver\n");
    exit(3);
}

/* Copies one instruction and moves both places past it. The kinds are those that UCX knows. */
static bool copy_instruction(const uint8_t **from, uint8_t **to)
{
    const uint8_t *code = *from;
    size_t size;
    if ((code[0] & 0xf8) == 0x50) { /* push %reg */
        size = 1;
    } else if (code[0] == 0x41 && (code[1] & 0xf8) == 0x50) { /* push %r8 to %r15 */
        size = 2;
    } else if (code[0] == 0x48 && code[1] == 0x89 && code[2] == 0xe5) { /* mov %rsp, %rbp */
        size = 3;
    } else if (code[0] == 0x48 && code[1] == 0x83 && code[2] == 0xec) { /* sub $imm8, %rsp */
        size = 4;
    } else if (code[0] == 0x48 && code[1] == 0x89 && (code[2] & 0xc7) == 0x44) { /* mov %reg, disp8(%rsp) */
        size = 5;
    } else if (code[0] == 0x81 && code[1] == 0x3d) { /* cmpl $imm32, disp32(%rip) */
        int32_t away;
        memcpy(&away, code + 2, sizeof away);
        const uint8_t *word = code + 10 + away;
        *to = put(*to, (uint8_t[]){ 0x50, 0x48, 0xb8 }, 3); /* push %rax; movabs word, %rax */
        *to = put(*to, &word, sizeof word);
        *to = put(*to, (uint8_t[]){ 0x81, 0x38 }, 2); /* cmpl $imm32, (%rax) */
        *to = put(*to, code + 6, 4);
        *to = put(*to, (uint8_t[]){ 0x58 }, 1); /* pop %rax */
        *from = code + 10;
        return true;
    } else if ((code[0] & 0xf0) == 0x70) { /* jcc rel8 */
        *to = put(*to, (uint8_t[]){ code[0], 2, 0xeb, 14 }, 4);
        *to = put_far_jump(*to, code + 2 + (int8_t)code[1]);
        *from = code + 2;
        return true;
    } else {
        return false;
    }
    *to = put(*to, code, size);
    *from = code + size;
    return true;
}

/* What the original is reached by, or NULL where an instruction is unknown. */
static function copy_entry(const uint8_t *code, size_t bytes, uint8_t *island)
{
    const uint8_t *from = code;
    uint8_t *to = island;
    while (from < code + bytes)
        if (!copy_instruction(&from, &to))
            return NULL;
    put_far_jump(to, from);
    return (function)(uintptr_t)island;
}

static void rewrite(uint8_t *code, size_t bytes, const uint8_t *near, function hook)
{
    uint8_t jump[13];
    if (bytes == 5) {
        int32_t away = (int32_t)(near - (code + 5));
        put(put(jump, (uint8_t[]){ 0xe9 }, 1), &away, sizeof away);
    } else {
        bool by_rax = bytes == 12;
        uint8_t *end = put(jump, by_rax ? (uint8_t[]){ 0x48, 0xb8 } : (uint8_t[]){ 0x49, 0xbb }, 2);
        end = put(end, &hook, sizeof hook);
        put(end, by_rax ? (uint8_t[]){ 0xff, 0xe0 } : (uint8_t[]){ 0x41, 0xff, 0xe3 }, bytes - 10);
    }
    uint8_t *page = (uint8_t *)((uintptr_t)code & ~(uintptr_t)(PAGE - 1));
    size_t size = (size_t)(code - page) + bytes;
    MUST(mprotect(page, size, PROT_READ | PROT_WRITE | PROT_EXEC));
    /* Threads that come by meanwhile turn on the spot. */
    __atomic_store_n((uint16_t *)code, 0xfeeb, __ATOMIC_SEQ_CST);
    memcpy(code + 2, jump + 2, bytes - 2);
    uint16_t head;
    memcpy(&head, jump, sizeof head);
    __atomic_store_n((uint16_t *)code, head, __ATOMIC_SEQ_CST);
    MUST(mprotect(page, size, PROT_READ | PROT_EXEC));
}

static void rewrite_all(size_t bytes, bool careful)
{
    uint8_t *islands = map_near(dlsym(RTLD_DEFAULT, functions[0].name));
    for (int i = 0; i < FUNCTIONS; i++) {
        uint8_t *code = dlsym(RTLD_DEFAULT, functions[i].name);
        uint8_t *near = islands + i * ISLAND_BYTES * 2, *copy = near + ISLAND_BYTES;
        put_far_jump(near, (void *)(uintptr_t)hooks[i]);
        functions[i].original = careful ? copy_entry(code, bytes, copy) : sim_body_of(functions[i].name);
        functions[i].rewritten = functions[i].original != NULL;
        if (functions[i].rewritten)
            rewrite(code, bytes, near, hooks[i]);
    }
}

/* Calls a function, and counts the call unless its entry is as it was. */
#define CALL(number, call)                                                                         \
    do {                                                                                           \
        int error = (call);                                                                        \
        functions[number].called += functions[number].rewritten;                                   \
        functions[number].worked += functions[number].rewritten && !error;                         \
        must(error, #call);                                                                        \
    } while (0)

/* Every function; the caller keeps one block. */
static void call_each(unsigned long long physical, device_pointer address)
{
    device_pointer pointer, kept;
    void *host;
    size_t pitch;
    CALL(ALLOC, cuMemAlloc_v2(&pointer, BLOCK));
    CALL(FREE, cuMemFree_v2(pointer));
    CALL(ALLOC_MANAGED, cuMemAllocManaged(&pointer, BLOCK, 1));
    CALL(FREE, cuMemFree_v2(pointer));
    CALL(ALLOC_PITCH, cuMemAllocPitch_v2(&pointer, &pitch, 512, 3, 4));
    CALL(FREE, cuMemFree_v2(pointer));
    CALL(ALLOC_ASYNC, cuMemAllocAsync(&pointer, BLOCK, NULL));
    CALL(FREE_ASYNC, cuMemFreeAsync(pointer, NULL));
    CALL(ALLOC_FROM_POOL, cuMemAllocFromPoolAsync(&pointer, BLOCK, NULL, NULL));
    CALL(FREE_ASYNC, cuMemFreeAsync(pointer, NULL));
    MUST(cuMemHostAlloc(&host, BLOCK, 0));
    CALL(FREE_HOST, cuMemFreeHost(host));
    CALL(MAP, cuMemMap(address, MAPPED, 0, physical, 0));
    CALL(UNMAP, cuMemUnmap(address, MAPPED));
    CALL(ALLOC, cuMemAlloc_v2(&kept, BLOCK));
    held[DEVICE] += BLOCK;
}

int main(int count, char **words)
{
    if (count < 5)
        return 2;
    bool before = strcmp(words[2], "before") == 0, careful = strcmp(words[4], "careful") == 0;
    size_t bytes = strtoul(words[3], NULL, 10);
    const struct location_properties here = { .type = 1, .location_type = 1, .location = 0 };
    unsigned long long physical;
    device_pointer address;
    if (before)
        rewrite_all(bytes, careful);
    wait_for_the_test(words[1]);
    MUST(cudaSetDevice(0));
    MUST(cuMemCreate(&physical, MAPPED, &here, 0));
    held[VIRTUAL] += MAPPED;
    MUST(cuMemAddressReserve(&address, MAPPED, 0, 0, 0));
    if (!before) {
        call_each(physical, address);
        rewrite_all(bytes, careful);
    }
    if (count > 5) {
        puts("rewriting is done");
        fflush(stdout);
        while (access(words[5], F_OK) != 0)
            usleep(2000);
    }
    for (int i = 0; i < ROUNDS; i++)
        call_each(physical, address);
    for (int i = 0; i < FUNCTIONS; i++)
        printf("%s %s called %u entered %u worked %u\n", functions[i].rewritten ? "rewritten" : "refused",
               functions[i].name, functions[i].called, functions[i].entered, functions[i].worked);
    print_truth();
    return 0;
}
