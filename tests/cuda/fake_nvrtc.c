/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A compiler in place of NVRTC for tests where there is none: what it makes is "FAKE", the name of the
 * text, the text and the options.
 * Every program it compiles adds a byte to the file FAKE_NVRTC_COUNT; FAKE_NVRTC_VERSION is its version, as
 * 13000. A text with an "#error" does not compile, nor does one that has FAKE_NVRTC_REFUSED in it or in its options;
 * one under -DSERIALISED has the note of a wgmma that waits.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))

typedef struct program {
    char *image;
    char log[256];
} program;

#define FAKE(name, ...)                                                                            \
    VISIBLE int name(__VA_ARGS__);                                                                 \
    int name(__VA_ARGS__)

FAKE(nvrtcVersion, int *major, int *minor) {
    const char *text = getenv("FAKE_NVRTC_VERSION");
    const long version = text ? strtol(text, NULL, 10) : 13000;
    *major = (int)(version / 1000);
    *minor = (int)(version % 1000 / 10);
    return 0;
}
FAKE(nvrtcCreateProgram, void **out, const char *text, const char *name, int count,
     const char *const *texts, const char *const *names) {
    program *made = calloc(1, sizeof *made);
    size_t size = strlen(text) + strlen(name) + 4096;
    for (int i = 0; i < count; i++) size += strlen(texts[i]) + strlen(names[i]);
    made->image = calloc(1, size);
    snprintf(made->image, size, "FAKE%s\n%s", name, text);
    for (int i = 0; i < count; i++) strcat(made->image, texts[i]);
    *out = made;
    return 0;
}
FAKE(nvrtcDestroyProgram, void **given) {
    program *gone = *given;
    free(gone->image);
    free(gone);
    *given = NULL;
    return 0;
}
static void count_one(void) {
    const char *path = getenv("FAKE_NVRTC_COUNT");
    const int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (file < 0) return;
    if (write(file, "+", 1) != 1) abort();
    close(file);
}
FAKE(nvrtcCompileProgram, void *given, int count, const char *const *options) {
    program *p = given;
    const char *pause = getenv("FAKE_NVRTC_PAUSE_US");
    if (pause) usleep((useconds_t)strtol(pause, NULL, 10));
    count_one();
    for (int i = 0; i < count; i++) {
        strcat(strcat(p->image, "\n"), options[i]);
        if (strcmp(options[i], "-DSERIALISED=(1)") == 0)
            snprintf(p->log, sizeof p->log,
                     "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async "
                     "instructions are serialized\n");
    }
    const char *refused = getenv("FAKE_NVRTC_REFUSED");
    const bool refuses = refused && strstr(p->image, refused);
    if (!refuses && !strstr(p->image, "#error")) return 0;
    snprintf(p->log, sizeof p->log, "1 thing first\ntest.cu(3): error: #error directive: no\n");
    return 6;
}
FAKE(nvrtcGetProgramLogSize, void *given, size_t *size) {
    *size = strlen(((program *)given)->log) + 1;
    return 0;
}
FAKE(nvrtcGetProgramLog, void *given, char *log) {
    strcpy(log, ((program *)given)->log);
    return 0;
}
FAKE(nvrtcGetCUBINSize, void *given, size_t *size) {
    *size = strlen(((program *)given)->image) + 1;
    return 0;
}
FAKE(nvrtcGetCUBIN, void *given, char *cubin) {
    strcpy(cubin, ((program *)given)->image);
    return 0;
}
