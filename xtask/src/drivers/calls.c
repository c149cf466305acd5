/* Calls functions of CUDA's libraries on request, and watches its own calls with kernel uprobes.
 *
 * Commands are lines on standard input; each is answered by one line of JSON on standard output. Everything that is
 * opened in the kernel (uprobes by perf_event_open, statistics of BPF programs) belongs to a file descriptor: it is gone
 * when this process ends, however it ends.
 *
 *   load PATH                            opens a library
 *   start FUNCTION                       calls a function once, with zeros
 *   call FUNCTION LOOPS TIMES            calls a function, best of LOOPS loops of TIMES calls
 *   watch FUNCTION TIMES FILE OFFSET     calls it with an entry and a return uprobe at an offset of a file
 *   compare FUNCTION FILE OFFSET LENGTH  compares the function's first bytes with those in its file
 *   statistics on|off                    has the kernel count the runs of BPF programs
 *   programs ID...                       name and count of runs of BPF programs
 *   hook                                 has UCX listen to calls that give memory back
 *   heard                                number of such calls that UCX reported since the last question
 */
#include <asm/perf_regs.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

/* Words of a command; libraries that can be open. */
enum { WORDS = 64, LIBRARIES = 8 };

/* Arguments in registers; argument N points to page N+1 of a buffer of zeros, so that a function that looks behind it
 * finds memory. */
enum { REGISTERS = 6, PAGE = 4096, BUFFER_PAGES = 16 };

/* A function with six arguments in registers and four on the stack (cudaMalloc3D takes three there). */
typedef int function(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                     uintptr_t);

static void *libraries[LIBRARIES];
static int library_count;
static char *buffer;

/* Where answers go: libraries print on standard output too. */
static FILE *answers;

#define say(...) fprintf(answers, __VA_ARGS__)

static uintptr_t argument(unsigned index, unsigned turn)
{
    return (uintptr_t)buffer + (index + 1) * PAGE + turn % 64 * 8;
}

static int call_once(function *called, unsigned turn)
{
    return called(argument(0, turn), argument(1, turn), argument(2, turn), argument(3, turn), argument(4, turn),
                  argument(5, turn), 64, 4, 2, 0);
}

static void fail(const char *what)
{
    /* Texts of dlerror hold paths, which may hold anything. */
    say("{\"error\":\"");
    for (; *what; what++) {
        if (*what == '"' || *what == '\\')
            fputc('\\', answers);
        if ((unsigned char)*what >= ' ')
            fputc(*what, answers);
    }
    say("\"}\n");
}

static void fail_by_errno(const char *what)
{
    char text[256];
    snprintf(text, sizeof text, "%s: %s", what, strerror(errno));
    fail(text);
}

static void *find(const char *name)
{
    for (int i = 0; i < library_count; i++) {
        void *found = dlsym(libraries[i], name);
        if (found)
            return found;
    }
    return NULL;
}

static void load(const char *path)
{
    if (library_count == LIBRARIES)
        return fail("too many libraries");
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        return fail(dlerror());
    libraries[library_count++] = library;
    say("{}\n");
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void call(function *called, long loops, long times)
{
    double best = 0;
    bool same = true;
    int result = call_once(called, 0);
    /* That call was one of the TIMES of the first loop, which counts exactly. */
    for (long loop = 0; loop < loops; loop++) {
        long left = loop ? times : times - 1;
        double start = now_ns();
        for (long i = 0; i < left; i++)
            same &= call_once(called, 0) == result;
        double each = left > 0 ? (now_ns() - start) / (double)left : 0;
        if (loop == 0 || each < best)
            best = each;
    }
    say("{\"result\":%d,\"same\":%s,\"ns\":%.1f}\n", result, same ? "true" : "false", best);
}

/* ---- uprobes of this thread ---- */

/* The sampled registers, in the order in which the kernel writes them: by number. */
static const int sampled[] = { PERF_REG_X86_AX, PERF_REG_X86_CX, PERF_REG_X86_DX, PERF_REG_X86_SI, PERF_REG_X86_DI,
                               PERF_REG_X86_SP, PERF_REG_X86_R8, PERF_REG_X86_R9 };
enum { SAMPLED = sizeof sampled / sizeof *sampled };
enum { AX, CX, DX, SI, DI, SP, R8, R9 };

struct sample {
    uint64_t registers[SAMPLED];
};

struct probe {
    int fd;
    struct perf_event_mmap_page *ring;
    size_t size;
};

/* Pages of a ring: room for far more samples than are taken between two readings. */
enum { RING_PAGES = 16, MOST_WATCHED = 64 };

static int number_in(const char *path, const char *format)
{
    int number = -1;
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, format, &number) != 1)
            number = -1;
        fclose(file);
    }
    return number;
}

static bool open_probe(struct probe *probe, const char *file, uint64_t offset, bool returns)
{
    struct perf_event_attr attr = { .size = sizeof attr };
    attr.type = (unsigned)number_in("/sys/bus/event_source/devices/uprobe/type", "%d");
    int bit = number_in("/sys/bus/event_source/devices/uprobe/format/retprobe", "config:%d");
    attr.config = returns ? 1ull << (bit < 0 ? 0 : bit) : 0;
    attr.uprobe_path = (uintptr_t)file;
    attr.probe_offset = offset;
    attr.sample_period = 1;
    attr.sample_type = PERF_SAMPLE_REGS_USER;
    for (int i = 0; i < SAMPLED; i++)
        attr.sample_regs_user |= 1ull << sampled[i];
    probe->fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (probe->fd < 0)
        return false;
    probe->size = (RING_PAGES + 1) * PAGE;
    probe->ring = mmap(NULL, probe->size, PROT_READ | PROT_WRITE, MAP_SHARED, probe->fd, 0);
    if (probe->ring == MAP_FAILED) {
        close(probe->fd);
        return false;
    }
    return true;
}

static void close_probe(struct probe *probe)
{
    munmap(probe->ring, probe->size);
    close(probe->fd);
}

/* Reads what was sampled; returns how many samples there were, also those that found no room. */
static unsigned read_samples(struct probe *probe, struct sample *samples)
{
    const char *data = (const char *)probe->ring + probe->ring->data_offset;
    uint64_t size = probe->ring->data_size;
    uint64_t head = __atomic_load_n(&probe->ring->data_head, __ATOMIC_ACQUIRE);
    unsigned count = 0;
    for (uint64_t tail = 0; tail < head;) {
        char record[512];
        struct perf_event_header header;
        for (size_t i = 0; i < sizeof header; i++)
            ((char *)&header)[i] = data[(tail + i) % size];
        if (header.size < sizeof header || header.size > sizeof record)
            break;
        for (size_t i = 0; i < header.size; i++)
            record[i] = data[(tail + i) % size];
        /* After the header: the ABI of the registers, then the registers. */
        if (header.type == PERF_RECORD_SAMPLE && header.size >= sizeof header + 8 + sizeof(struct sample)) {
            if (count < MOST_WATCHED)
                memcpy(&samples[count], record + sizeof header + 8, sizeof *samples);
            count++;
        }
        tail += header.size;
    }
    return count;
}

static void watch(function *called, unsigned times, const char *file, uint64_t offset)
{
    static struct sample entries[MOST_WATCHED], returns[MOST_WATCHED];
    struct probe entry, back;
    int results[MOST_WATCHED];
    if (times > MOST_WATCHED)
        times = MOST_WATCHED;
    if (!open_probe(&entry, file, offset, false))
        return fail_by_errno("the kernel places no entry uprobe");
    if (!open_probe(&back, file, offset, true)) {
        close_probe(&entry);
        return fail_by_errno("the kernel places no return uprobe");
    }
    for (unsigned turn = 0; turn < times; turn++)
        results[turn] = call_once(called, turn);
    ioctl(entry.fd, PERF_EVENT_IOC_DISABLE, 0);
    ioctl(back.fd, PERF_EVENT_IOC_DISABLE, 0);
    unsigned entered = read_samples(&entry, entries), returned = read_samples(&back, returns);
    close_probe(&entry);
    close_probe(&back);
    static const int passed[REGISTERS] = { DI, SI, DX, CX, R8, R9 };
    unsigned arguments = 0, right = 0, stacks = 0;
    for (unsigned turn = 0; turn < times; turn++) {
        bool same = turn < entered;
        for (unsigned i = 0; same && i < REGISTERS; i++)
            same = entries[turn].registers[passed[i]] == argument(i, turn);
        arguments += same;
        bool both = turn < entered && turn < returned;
        right += turn < returned && (int)returns[turn].registers[AX] == results[turn];
        stacks += both && returns[turn].registers[SP] == entries[turn].registers[SP] + 8;
    }
    say("{\"times\":%u,\"entered\":%u,\"returned\":%u,\"arguments\":%u,\"results\":%u,\"stack_pointers\":%u}\n", times,
           entered, returned, arguments, right, stacks);
}

/* Says where bytes differ, and shows none of them but a breakpoint's (0xcc). */
static void compare(const unsigned char *code, const char *path, off_t offset, size_t length)
{
    unsigned char in_file[64];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (length > sizeof in_file)
        length = sizeof in_file;
    if (file < 0 || pread(file, in_file, length, offset) != (ssize_t)length) {
        fail_by_errno("the file cannot be read");
        if (file >= 0)
            close(file);
        return;
    }
    close(file);
    unsigned differ = 0, breakpoints = 0;
    for (size_t i = 0; i < length; i++) {
        differ += code[i] != in_file[i];
        breakpoints += code[i] != in_file[i] && code[i] == 0xcc;
    }
    say("{\"differ\":%u,\"breakpoints\":%u}\n", differ, breakpoints);
}

/* ---- BPF programs ---- */

static int bpf(int command, union bpf_attr *attr)
{
    return (int)syscall(SYS_bpf, command, attr, sizeof *attr);
}

static void statistics(bool on)
{
    static int fd = -1;
    if (fd >= 0)
        close(fd);
    fd = -1;
    if (on) {
        union bpf_attr attr;
        memset(&attr, 0, sizeof attr);
        attr.enable_stats.type = BPF_STATS_RUN_TIME;
        fd = bpf(BPF_ENABLE_STATS, &attr);
        if (fd < 0)
            return fail_by_errno("the kernel keeps no statistics of BPF programs");
    }
    say("{}\n");
}

static void programs(char **ids)
{
    say("{\"programs\":[");
    bool first = true;
    for (; *ids; ids++) {
        struct bpf_prog_info info;
        union bpf_attr attr;
        memset(&attr, 0, sizeof attr);
        attr.prog_id = (unsigned)strtoul(*ids, NULL, 10);
        int fd = bpf(BPF_PROG_GET_FD_BY_ID, &attr);
        if (fd < 0)
            continue;
        memset(&info, 0, sizeof info);
        memset(&attr, 0, sizeof attr);
        attr.info.bpf_fd = (unsigned)fd;
        attr.info.info_len = sizeof info;
        attr.info.info = (uintptr_t)&info;
        if (bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) == 0) {
            /* Names of BPF programs are letters, digits, '_' and '.' (bpf_obj_name_cpy, kernel/bpf/syscall.c). */
            say("%s{\"name\":\"%.*s\",\"runs\":%llu}", first ? "" : ",", BPF_OBJ_NAME_LEN, info.name,
                   (unsigned long long)info.run_cnt);
            first = false;
        }
        close(fd);
    }
    say("]}\n");
}

/* ---- UCX ---- */

/* ucm/api/ucm.h of UCX 1.22.0: UCM_EVENT_MEM_TYPE_FREE. */
enum { MEMORY_FREED = 1 << 21 };

static unsigned long heard_count;

static void on_event(int type, void *event, void *mine)
{
    (void)event;
    (void)mine;
    heard_count += type == MEMORY_FREED;
}

static void hook(void)
{
    /* A status is one byte (UCS_S_PACKED), negative for an error. */
    signed char (*set_handler)(int, int, void (*)(int, void *, void *), void *) = find("ucm_set_event_handler");
    if (!set_handler)
        return fail("no library that is loaded is UCX's libucm");
    say("{\"result\":%d}\n", set_handler(MEMORY_FREED, 0, on_event, NULL));
}

/* ---- commands ---- */

static void execute(char **words, int count)
{
    const char *command = words[0];
    if (!strcmp(command, "load") && count == 2)
        return load(words[1]);
    if (!strcmp(command, "statistics") && count == 2)
        return statistics(!strcmp(words[1], "on"));
    if (!strcmp(command, "programs"))
        return programs(words + 1);
    if (!strcmp(command, "hook"))
        return hook();
    if (!strcmp(command, "heard")) {
        say("{\"heard\":%lu}\n", heard_count);
        heard_count = 0;
        return;
    }
    void *found = count > 1 ? find(words[1]) : NULL;
    if (!found)
        return fail("no such command or function");
    if (!strcmp(command, "start") && count == 2) {
        int result = ((function *)found)(0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        say("{\"result\":%d,\"same\":true,\"ns\":0}\n", result);
        return;
    }
    if (!strcmp(command, "call") && count == 4)
        return call((function *)found, strtol(words[2], NULL, 10), strtol(words[3], NULL, 10));
    if (!strcmp(command, "watch") && count == 5)
        return watch((function *)found, (unsigned)strtoul(words[2], NULL, 10), words[3], strtoull(words[4], NULL, 10));
    if (!strcmp(command, "compare") && count == 5)
        return compare(found, words[2], strtol(words[3], NULL, 10), strtoul(words[4], NULL, 10));
    fail("no such command");
}

int main(void)
{
    static char line[65536];
    /* Not left behind where the one who gives the commands is killed. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    buffer = mmap(NULL, BUFFER_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int kept = dup(STDOUT_FILENO);
    answers = kept < 0 ? NULL : fdopen(kept, "w");
    if (buffer == MAP_FAILED || !answers || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return 1;
    while (fgets(line, sizeof line, stdin)) {
        /* Words are divided by tabs: a path may hold blanks. */
        char *words[WORDS + 1] = { 0 };
        int count = 0;
        line[strcspn(line, "\n")] = 0;
        for (char *word = strtok(line, "\t"); word && count < WORDS; word = strtok(NULL, "\t"))
            words[count++] = word;
        if (count > 0)
            execute(words, count);
        fflush(answers);
    }
    return 0;
}
