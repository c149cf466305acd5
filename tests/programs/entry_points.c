/* Asks cuGetProcAddress for every function that is named: the answer is to be an exported function. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
void *sim_body_of(const char *name);

/* The function of that name, or of a newer version of it. */
static int is_exported(const char *name, const void *function)
{
    static const char *const suffixes[] = { "", "_v2", "_v3", "_v4" };
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        char symbol[128];
        snprintf(symbol, sizeof symbol, "%s%s", name, suffixes[i]);
        if (dlsym(RTLD_DEFAULT, symbol) == function)
            return 1;
    }
    return 0;
}

int main(int count, char **names)
{
    for (int i = 1; i < count; i++) {
        void *function, *body = sim_body_of(names[i]);
        if (cuGetProcAddress_v2(names[i], &function, 13000, 0, NULL) != 0 || !function ||
            !is_exported(names[i], function) || !body || function == body) {
            fprintf(stderr, "%s: %p, its body %p\n", names[i], function, body);
            return 1;
        }
    }
    printf("%d functions\n", count - 1);
    return 0;
}
