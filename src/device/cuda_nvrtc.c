/* SPDX-License-Identifier: Apache-2.0 */
/* libnvrtc by dlopen, once per process, and what it is asked to do. */
#define _GNU_SOURCE 1 /* dladdr */
#include "device/cuda_nvrtc.h"

#include "base/folder.h"
#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_VERSION = 12000, NEWEST_MAJOR = 14 };

/* Member, symbol, parameters. Every function answers an nvrtcResult, 0 for success. */
#define NVRTC_LIST(X)                                                                              \
    X(version, "nvrtcVersion", (int *major, int *minor))                                           \
    X(create, "nvrtcCreateProgram",                                                                \
      (void **program, const char *text, const char *name, int count, const char *const *texts,    \
       const char *const *names))                                                                  \
    X(destroy, "nvrtcDestroyProgram", (void **program))                                            \
    X(compile, "nvrtcCompileProgram", (void *program, int count, const char *const *options))      \
    X(log_size, "nvrtcGetProgramLogSize", (void *program, size_t *size))                           \
    X(log, "nvrtcGetProgramLog", (void *program, char *log))                                       \
    X(cubin_size, "nvrtcGetCUBINSize", (void *program, size_t *size))                              \
    X(cubin, "nvrtcGetCUBIN", (void *program, char *cubin))

static pthread_once_t once = PTHREAD_ONCE_INIT;
static ejk_status verdict;
static char sentence[512];
static char path[512];
static int version;
static struct {
#define MEMBER(member, symbol, parameters) int(*member) parameters;
    NVRTC_LIST(MEMBER)
#undef MEMBER
} nvrtc;

static bool find_symbols(void *library) {
#define FIND(member, symbol, parameters)                                                           \
    {                                                                                              \
        void *found = dlsym(library, symbol);                                                      \
        if (!found) return false;                                                                  \
        memcpy(&nvrtc.member, &found, sizeof found);                                               \
    }
    NVRTC_LIST(FIND)
#undef FIND
    return true;
}

/* The library's own file, for whoever wants to know which one it is. */
static void note_path(const char *asked) {
    Dl_info info;
    void *address;
    memcpy(&address, &nvrtc.version, sizeof address);
    snprintf(path, sizeof path, "%s",
             dladdr(address, &info) && info.dli_fname ? info.dli_fname : asked);
}

static bool try_file(const char *name) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    int major = 0, minor = 0;
    if (!library) return false;
    if (find_symbols(library) && nvrtc.version(&major, &minor) == 0 &&
        1000 * major + 10 * minor >= LEAST_VERSION) {
        version = 1000 * major + 10 * minor;
        note_path(name);
        return true;
    }
    snprintf(sentence, sizeof sentence, "%.300s is no NVRTC of CUDA %d or later", name,
             LEAST_VERSION / 1000);
    dlclose(library);
    return false;
}

/* The first file of a pattern that will do. */
static bool try_pattern(const char *pattern) {
    glob_t found;
    bool loaded = false;
    if (!pattern || glob(pattern, 0, NULL, &found) != 0) return false;
    for (size_t i = 0; i < found.gl_pathc && !loaded; i++) loaded = try_file(found.gl_pathv[i]);
    globfree(&found);
    return loaded;
}

/* By name, as the system's loader finds it. A driver refuses what a later major version compiled. */
static bool try_names(void) {
    const int own = ejki_cuda_driver_version() / 1000;
    char name[32];
    for (int major = own ? own : NEWEST_MAJOR; major >= LEAST_VERSION / 1000; major--) {
        snprintf(name, sizeof name, "libnvrtc.so.%d", major);
        if (try_file(name)) return true;
    }
    return false;
}

/* The toolkit, and where Python's packages are. */
static bool try_places(void) {
    static const char *const places[] = {
        "/usr/local/cuda/lib64/libnvrtc.so.1[2-9]",
        "/usr/local/cuda/targets/*/lib/libnvrtc.so.1[2-9]",
        "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libnvrtc.so.1[2-9]",
        "/usr/lib/python3*/*-packages/nvidia/*/lib/libnvrtc.so.1[2-9]",
    };
    static const char *const roots[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (try_pattern(places[i])) return true;
    bool loaded = false;
    for (size_t i = 0; i < sizeof roots / sizeof *roots && !loaded; i++) {
        const char *root = getenv(roots[i]);
        if (!root || !*root) continue;
        char *pattern =
            ejki_compose("%s/lib/python3*/*-packages/nvidia/*/lib/libnvrtc.so.1[2-9]", root);
        loaded = try_pattern(pattern);
        free(pattern);
    }
    return loaded;
}

static void load(void) {
    const char *wish = getenv("EJKERNEL_NVRTC_LIBRARY");
    const bool named = wish && *wish;
    if (named ? try_file(wish) : try_names() || try_places()) return;
    verdict = EJK_STATUS_UNAVAILABLE;
    if (sentence[0]) return;
    if (named)
        snprintf(sentence, sizeof sentence,
                 "NVRTC cannot be loaded from EJKERNEL_NVRTC_LIBRARY: %.300s", wish);
    else
        snprintf(sentence, sizeof sentence,
                 "NVRTC (libnvrtc.so.%d) is not found; it is part of the CUDA toolkit and of the "
                 "Python package nvidia-cuda-nvrtc, and EJKERNEL_NVRTC_LIBRARY may name its file",
                 ejki_cuda_driver_version() ? ejki_cuda_driver_version() / 1000
                                            : LEAST_VERSION / 1000);
}

ejk_status ejki_nvrtc_load(int *out) {
    pthread_once(&once, load);
    if (verdict != EJK_OK) return ejki_fail(verdict, "%s", sentence);
    *out = version;
    return EJK_OK;
}

const char *ejki_nvrtc_path(void) {
    return path;
}

/* ---- Compiling -------------------------------------------------------------------------------------- */

/* The first line of a log that tells of an error; else the first one. */
static const char *first_error(const char *log, int *length) {
    const char *error = strstr(log, "error");
    while (error && error > log && error[-1] != '\n') error--;
    if (!error) error = log;
    *length = (int)strcspn(error, "\n");
    return error;
}

/* ptxas notes with these numbers that it made wgmma wait for each other: right, but slow. */
static const char *serialised(const char *log) {
    for (const char *at = log; (at = strstr(at, "C75")); at += 3)
        if ((at[3] == '1' && at[4] >= '0' && at[4] <= '9') || (at[3] == '2' && at[4] == '0'))
            return at;
    return NULL;
}

static ejk_status check_log(int error, const char *log, const char *name,
                            const char *architecture) {
    int length;
    if (error) {
        const char *line = first_error(log, &length);
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "kernel %.64s cannot be compiled for %.16s by NVRTC %d.%d: %.*s (%d)",
                         name, architecture, version / 1000, version % 1000 / 10,
                         length > 400 ? 400 : length, line, error);
    }
    const char *note = serialised(log);
    if (note)
        return ejki_fail(
            EJK_STATUS_UNAVAILABLE,
            "kernel %.64s for %.16s is refused, as its wgmma would be serialised: %.*s", name,
            architecture, (int)strcspn(note, "\n"), note);
    return EJK_OK;
}

/* Both answers to be freed; NULL without memory or without an answer. */
static char *read_log(void *program) {
    size_t size = 0;
    if (nvrtc.log_size(program, &size) != 0) size = 0;
    char *log = calloc(1, size + 1);
    if (log && size && nvrtc.log(program, log) != 0) log[0] = '\0';
    return log;
}

static void *read_cubin(void *program, size_t *size) {
    if (nvrtc.cubin_size(program, size) != 0 || *size == 0) return NULL;
    char *cubin = malloc(*size);
    if (!cubin || nvrtc.cubin(program, cubin) == 0) return cubin;
    free(cubin);
    return NULL;
}

enum { MOST_CONSTANTS = 64, OWN_OPTIONS = 4, CACHES_ITSELF = 13000 };

static ejk_status compile(void *program, const char *architecture, const char *name,
                          const ejki_cuda_constant *constants, int32_t count,
                          ejki_cuda_image *out) {
    char texts[MOST_CONSTANTS + 1][96];
    const char *options[MOST_CONSTANTS + OWN_OPTIONS + 1] = {
        texts[0], "-std=c++17", "-default-device", "--ptxas-options=-v"};
    snprintf(texts[0], sizeof texts[0], "-arch=%.16s", architecture);
    for (int32_t i = 0; i < count; i++) {
        snprintf(texts[i + 1], sizeof texts[0], "-D%.64s=(%lld)", constants[i].name,
                 (long long)constants[i].value);
        options[OWN_OPTIONS + i] = texts[i + 1];
    }
    int all = OWN_OPTIONS + count;
    if (ejki_cuda_trial_get() && version >= CACHES_ITSELF) options[all++] = "--no-cache";
    const int error = nvrtc.compile(program, all, options);
    ejki_cuda_image image = {.log = read_log(program)};
    if (!image.log) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a compiler's log");
    ejk_status status = check_log(error, image.log, name, architecture);
    if (status == EJK_OK) image.bytes = read_cubin(program, &image.size);
    if (status == EJK_OK && !image.bytes)
        status =
            ejki_fail(EJK_STATUS_UNAVAILABLE,
                      "NVRTC gives no machine code of kernel %.64s for %.16s", name, architecture);
    if (status == EJK_OK)
        *out = image;
    else
        free(image.log);
    return status;
}

ejk_status ejki_cuda_compile(const char *architecture, const ejki_cuda_source *source,
                             const ejki_cuda_constant *constants, int32_t count,
                             ejki_cuda_image *out) {
    int unused;
    ejki_cuda_texts_used used;
    const char *names[EJKI_CUDA_MOST_TEXTS], *texts[EJKI_CUDA_MOST_TEXTS];
    if (count < 0 || count > MOST_CONSTANTS)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "kernel %.64s has %d constants, expected at most %d", source->name,
                         (int)count, MOST_CONSTANTS);
    EJKI_TRY(ejki_nvrtc_load(&unused));
    EJKI_TRY(ejki_cuda_collect(source, &used));
    for (int32_t i = 1; i < used.count; i++) {
        names[i - 1] = used.texts[i]->name;
        texts[i - 1] = used.texts[i]->text;
    }
    void *program = NULL;
    if (nvrtc.create(&program, source->text, source->name, used.count - 1, texts, names) != 0)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "NVRTC has no memory for kernel %.64s",
                         source->name);
    const ejk_status status = compile(program, architecture, source->name, constants, count, out);
    nvrtc.destroy(&program);
    return status;
}

void ejki_cuda_image_close(ejki_cuda_image *image) {
    free(image->bytes);
    free(image->log);
    *image = (ejki_cuda_image){0};
}
