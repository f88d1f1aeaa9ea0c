/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels for GPUs, compiled for sm_80 and sm_90a with constants that their launchers give them, without a GPU:
 * registers and bytes spilled stay within what the `compile` lines of the lists of kernels say, and no warning comes.
 * Each text is compiled as the first line that has it says, for sm_80 if that can be and for sm_90a if it cannot, or if
 * the text asks which it is; with EJK_TEST_FULL for both and as all lines say. Answers 77 where there is no NVRTC.
 * EJK_TEST_PROCESSES share the work; EJK_TEST_FILTER is a part of a text's name.
 */
#include "device/cuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77, MOST_PROCESSES = 32 };

/* A kernel's text, its constants, and how many bytes a thread may spill on either architecture; -1: not for it. */
struct row {
    const char *text, *constants;
    int spills[2];
};

static const char *const architectures[] = {"sm_80", "sm_90a"};

static const struct row rows[] = {
#include "compile_lines.inc"
    /* What no operation owns. */
    {"kernels/cuda/ceiling.cu", "KIND=0 ELEMENT=3", {0, 0}},
    {"kernels/cuda/ceiling.cu", "KIND=1 ELEMENT=3", {0, 0}},
    {"kernels/cuda/ceiling.cu", "KIND=1 ELEMENT=4", {0, 0}},
    {"kernels/cuda/ceiling.cu", "KIND=2 ELEMENT=3", {-1, 0}},
    {"kernels/cuda/ceiling.cu", "KIND=2 ELEMENT=4", {-1, 0}},
};

static int constants_of(char *text, ejki_cuda_constant *list) {
    int count = 0;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        char *value = strchr(word, '=');
        if (!value) abort();
        *value = '\0';
        list[count++] = (ejki_cuda_constant){word, strtoll(value + 1, NULL, 10)};
    }
    return count;
}

/* The largest number before `what` in a log; -1 if it is not there. */
static int largest(const char *log, const char *what) {
    int most = -1;
    for (const char *at = strstr(log, what); at; at = strstr(at + 1, what)) {
        const char *start = at;
        while (start > log && start[-1] >= '0' && start[-1] <= '9') start--;
        const int value = atoi(start);
        if (value > most) most = value;
    }
    return most;
}

static bool check(const struct row *row, int which) {
    char text[512];
    ejki_cuda_constant list[32];
    ejki_cuda_image image;
    snprintf(text, sizeof text, "%s", row->constants);
    const int count = constants_of(text, list);
    if (row->spills[which] < 0) return true;
    const ejki_cuda_source *source = ejki_cuda_text(row->text);
    if (!source) {
        printf("FAIL %s: there is no such text\n", row->text);
        return false;
    }
    if (ejki_cuda_compile(architectures[which], source, list, count, &image) != EJK_OK) {
        printf("FAIL %s %s [%s]: %s\n", row->text, architectures[which], row->constants,
               ejk_last_error());
        return false;
    }
    const int registers = largest(image.log, " registers");
    const int spilled = largest(image.log, " bytes spill stores");
    const bool warned = strstr(image.log, "warning") || strstr(image.log, "C75");
    const bool good =
        registers > 0 && spilled >= 0 && spilled <= row->spills[which] && !warned && image.size > 0;
    printf("%-4s %s %s [%s]: %d registers, %d bytes spilled, %d allowed%s\n", good ? "ok" : "FAIL",
           row->text, architectures[which], row->constants, registers, spilled, row->spills[which],
           warned ? ", with warnings" : "");
    if (warned) printf("%s\n", image.log);
    fflush(stdout);
    ejki_cuda_image_close(&image);
    return good;
}

/* True if no row before has the text for the architecture, nor any for one to which it is the same. */
static bool is_first(size_t row, int which) {
    const ejki_cuda_source *source = ejki_cuda_text(rows[row].text);
    const bool asks = source && strstr(source->text, "__CUDA_ARCH__");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].text, rows[row].text) != 0) continue;
        if (i < row && rows[i].spills[which] >= 0) return false;
        if (which > 0 && !asks && rows[i].spills[0] >= 0) return false;
    }
    return true;
}

/* Whichever is next for one of the processes; they share `next`. */
static int check_rows(atomic_int *next) {
    enum { COUNT = 2 * sizeof rows / sizeof *rows };
    const char *filter = getenv("EJK_TEST_FILTER");
    const bool full = getenv("EJK_TEST_FULL") != NULL;
    int failures = 0;
    for (int n; (n = atomic_fetch_add(next, 1)) < COUNT;) {
        const size_t row = (size_t)n / 2;
        const bool chosen = !filter || strstr(rows[row].text, filter);
        if (chosen && (full || is_first(row, n % 2))) failures += !check(&rows[row], n % 2);
    }
    return failures;
}

int main(void) {
    ejki_cuda_image image;
    const ejki_cuda_constant least[] = {{"KIND", 0}, {"ELEMENT", EJK_DTYPE_F32}};
    if (ejki_cuda_compile("sm_80", ejki_cuda_text("kernels/cuda/ceiling.cu"), least, 2, &image) !=
        EJK_OK) {
        printf("%s\n", ejk_last_error());
        return strstr(ejk_last_error(), "not found") ? SKIPPED : EXIT_FAILURE;
    }
    ejki_cuda_image_close(&image);
    const char *wish = getenv("EJK_TEST_PROCESSES");
    int processes = wish ? atoi(wish) : 2, failures = 0;
    if (processes < 1 || processes > MOST_PROCESSES) processes = MOST_PROCESSES;
    fflush(stdout);
    atomic_int *next =
        mmap(NULL, sizeof *next, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (next == MAP_FAILED) return EXIT_FAILURE;
    pid_t children[MOST_PROCESSES];
    for (int n = 0; n < processes; n++) {
        children[n] = fork();
        if (children[n] == 0) {
            const int failed = check_rows(next);
            fflush(stdout);
            _Exit(failed ? EXIT_FAILURE : EXIT_SUCCESS);
        }
    }
    for (int n = 0; n < processes; n++) {
        int status = 0;
        failures += waitpid(children[n], &status, 0) != children[n] || status != 0;
    }
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
