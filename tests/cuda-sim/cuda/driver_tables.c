/* Driver API: functions that are reached through tables instead of by name. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "state.h"

static int primary_context(void **context, int device)
{
    return retain_primary_context((struct context **)context, device);
}

ENTRY(int, cuGetExportTable, const void **table, const void *identifier)
{
    static const char own[16] = PRIVATE_TABLE;
    static const struct private_table functions = { sizeof functions, primary_context };
    if (memcmp(identifier, own, sizeof own) != 0)
        return CUDA_INVALID_VALUE;
    *table = &functions;
    return CUDA_OK;
}

#ifdef ENTRY_CODE
extern const struct entry_body __start_sim_bodies[], __stop_sim_bodies[];

EXPORT void *sim_body_of(const char *name)
{
    for (const struct entry_body *entry = __start_sim_bodies; entry < __stop_sim_bodies; entry++)
        if (strcmp(entry->name, name) == 0)
            return entry->body;
    return NULL;
}
#else
EXPORT void *sim_body_of(const char *)
{
    return NULL;
}
#endif

#if defined __x86_64__ && defined ENTRY_TRAMPOLINE
/* Compared by every entry with the constant. */
unsigned sim_entry_word = 1;

__attribute__((constructor)) static void choose_branch(void)
{
    const char *other = getenv("CUDASIM_OTHER_BRANCH");
    if (other && strcmp(other, "1") == 0)
        sim_entry_word = ENTRY_CONSTANT_NUMBER;
}
#endif
