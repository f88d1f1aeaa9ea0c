/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of this process: one module for each text, set of constants and device, and its functions. Whoever asks
 * for one that is being made waits for it. They stay until the process ends, as the primary contexts do.
 */
#include "device/cuda_cache.h"
#include "device/cuda_driver.h"
#include "device/cuda_event.h"
#include "device/cuda_nvrtc.h"

#include <ejkernel/device.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ejki_cuda_function {
    struct ejki_cuda_function *next;
    char *entry;
    int32_t device; /* -1: only built, for a device that need not be there */
    void *handle;
    ejki_cuda_usage usage;
};

enum { MOST_NAME = 1024 };

/* What the process itself knows a module by: text and constants, as "0x1234 HEAD_DIM=64 …"; "" if that is too long. */
typedef struct module_name {
    char text[MOST_NAME];
} module_name;

typedef struct ejki_cuda_module {
    struct ejki_cuda_module *next;
    int32_t device;
    const ejki_cuda_source *source;
    ejki_cuda_key key;
    module_name name;
    bool making;
    void *handle;
    ejki_cuda_function_t *functions;
} module;

/* Guards the lists; a module whose `making` is set belongs to the thread that makes it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t made = PTHREAD_COND_INITIALIZER;
static module *modules;

static _Thread_local ejki_cuda_meter *current_meter;

/* ---- Machine code ----------------------------------------------------------------------------------- */

/* All that a kernel's machine code is made from. */
typedef struct recipe {
    const char *architecture;
    const ejki_cuda_source *source;
    const ejki_cuda_constant *constants;
    int32_t count;
    const ejki_cuda_key *key;
    const module_name *name;
} recipe;

/* `missed`: the version of NVRTC whose file was looked for already. */
static ejk_status build(const recipe *r, int missed, ejki_cuda_image *out) {
    int version = 0;
    const double start = ejk_now();
    EJKI_TRY(ejki_nvrtc_load(&version));
    ejki_cuda_cache_note(version, ejki_nvrtc_path());
    ejki_cuda_trial *trial = ejki_cuda_trial_get();
    const bool look = version != missed && !(trial && trial->compile);
    if (look && ejki_cuda_cache_read(r->key, version, r->source->name, out)) return EJK_OK;
    EJKI_TRY(ejki_cuda_compile(r->architecture, r->source, r->constants, r->count, out));
    ejki_cuda_emit("cuda_kernel_compiled", "{s:s, s:s, s:f}", "kernel", r->source->name,
                   "architecture", r->architecture, "seconds", ejk_now() - start);
    ejki_cuda_cache_write(r->key, version, r->source->name, out);
    if (ejki_cuda_target_get()) ejki_cuda_target_get()->built++;
    if (trial) trial->compiled++;
    return EJK_OK;
}

/* From the disk if the version of NVRTC is known without loading it, or there is none at all. */
static ejk_status obtain(const recipe *r, ejki_cuda_image *out) {
    int unused;
    const ejki_cuda_trial *trial = ejki_cuda_trial_get();
    if (trial && trial->compile) return build(r, 0, out);
    const int noted = ejki_cuda_cache_noted();
    if (noted && ejki_cuda_cache_read(r->key, noted, r->source->name, out)) return EJK_OK;
    const ejk_status status = build(r, noted, out);
    if (status != EJK_STATUS_UNAVAILABLE || ejki_nvrtc_load(&unused) == EJK_OK) return status;
    if (ejki_cuda_cache_read(r->key, 0, r->source->name, out)) return EJK_OK;
    return ejki_nvrtc_load(&unused); /* for its sentence */
}

/* ---- Modules ---------------------------------------------------------------------------------------- */

static module *find(module *list, int32_t device, const ejki_cuda_source *source,
                    const ejki_cuda_key *key) {
    for (module *m = list; m; m = m->next)
        if (m->device == device && m->source == source && memcmp(&m->key, key, sizeof *key) == 0)
            return m;
    return NULL;
}

static void name_module(const ejki_cuda_source *source, const ejki_cuda_constant *constants,
                        int32_t count, module_name *out) {
    int used = snprintf(out->text, sizeof out->text, "%p", (const void *)source->text);
    for (int32_t i = 0; i < count && used < MOST_NAME; i++)
        used += snprintf(out->text + used, sizeof out->text - (size_t)used, " %s=%lld",
                         constants[i].name, (long long)constants[i].value);
    if (used >= MOST_NAME) out->text[0] = '\0';
}

/*
 * Under the lock: one that is loaded already. A key takes a look at all texts; calls whose sizes are ever new
 * want none.
 */
static module *find_loaded(int32_t device, const ejki_cuda_source *source,
                           const module_name *name) {
    for (module *m = modules; m && name->text[0]; m = m->next)
        if (m->device == device && m->source == source && !m->making &&
            strcmp(m->name.text, name->text) == 0)
            return m;
    return NULL;
}

static ejk_status load(int32_t device, const char *name, const ejki_cuda_image *image, void **out) {
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(device, &pushed));
    const int error = ejki_cuda_driver_get()->load(out, image->bytes);
    ejki_cuda_leave(pushed);
    if (error == EJKI_CU_SUCCESS) return EJK_OK;
    char doing[128];
    snprintf(doing, sizeof doing, "kernel %.64s cannot be loaded on cuda:%d", name, (int)device);
    return ejki_cuda_check(error, doing);
}

/* Under the lock: takes a module out again, and wakes those who wait for it to try themselves. */
static void drop(module *gone) {
    for (module **at = &modules; *at; at = &(*at)->next)
        if (*at == gone) {
            *at = gone->next;
            break;
        }
    free(gone);
}

static ejk_status make_module(module *m, const recipe *r) {
    ejki_cuda_image image;
    EJKI_TRY(obtain(r, &image));
    const ejk_status status = load(m->device, m->source->name, &image, &m->handle);
    ejki_cuda_image_close(&image);
    return status;
}

static ejk_status new_module(int32_t device, const recipe *r, module **out) {
    module *m = calloc(1, sizeof *m);
    if (!m) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a kernel's module");
    *m = (module){
        .device = device, .source = r->source, .key = *r->key, .name = *r->name, .making = true};
    *out = m;
    return EJK_OK;
}

/* One that this thread has for itself, made anew. */
static ejk_status trial_module(ejki_cuda_trial *trial, int32_t device, const recipe *r,
                               module **out) {
    module *m = find(trial->modules, device, r->source, r->key);
    *out = m;
    if (m) return EJK_OK;
    EJKI_TRY(new_module(device, r, &m));
    const ejk_status status = make_module(m, r);
    if (status != EJK_OK) {
        free(m);
        return status;
    }
    m->next = trial->modules;
    trial->modules = m;
    trial->kernels++;
    *out = m;
    return EJK_OK;
}

/* Called and answered under the lock, which is given up while the module is made. */
static ejk_status module_of(int32_t device, const recipe *r, module **out) {
    module *m = NULL;
    while ((m = find(modules, device, r->source, r->key)) && m->making)
        pthread_cond_wait(&made, &lock);
    if (!m) {
        EJKI_TRY(new_module(device, r, &m));
        m->next = modules;
        modules = m;
        pthread_mutex_unlock(&lock);
        const ejk_status status = make_module(m, r);
        pthread_mutex_lock(&lock);
        m->making = false;
        if (status != EJK_OK) drop(m);
        pthread_cond_broadcast(&made);
        if (status != EJK_OK) return status;
    }
    *out = m;
    return EJK_OK;
}

/* ---- Functions -------------------------------------------------------------------------------------- */

static int attribute_of(void *handle, int attribute) {
    int value = 0;
    return ejki_cuda_driver_get()->get_attribute(&value, attribute, handle) == EJKI_CU_SUCCESS
               ? value
               : 0;
}

/* More than 48 KB of dynamic shared memory has to be asked for: once and all there is, so that launches need not. */
static void allow_shared(int32_t shared_bytes, const ejki_cuda_function_t *f) {
    const int most = (int)(shared_bytes - f->usage.shared_bytes);
    if (most > 0)
        ejki_cuda_driver_get()->set_attribute(f->handle, EJKI_CU_FUNCTION_MOST_DYNAMIC_SHARED,
                                              most);
}

static ejk_status take_handle(const module *m, const char *entry, ejki_cuda_function_t *out) {
    bool pushed;
    const ejk_gpu_info *gpu;
    EJKI_TRY(ejki_cuda_gpu(m->device, &gpu));
    EJKI_TRY(ejki_cuda_enter(m->device, &pushed));
    const int error = ejki_cuda_driver_get()->function(&out->handle, m->handle, entry);
    if (error == EJKI_CU_SUCCESS)
        out->usage = (ejki_cuda_usage){attribute_of(out->handle, EJKI_CU_FUNCTION_REGISTERS),
                                       attribute_of(out->handle, EJKI_CU_FUNCTION_SHARED_BYTES),
                                       attribute_of(out->handle, EJKI_CU_FUNCTION_LOCAL_BYTES)};
    if (error == EJKI_CU_SUCCESS) allow_shared((int32_t)gpu->shared_bytes, out);
    ejki_cuda_leave(pushed);
    if (error == EJKI_CU_SUCCESS) return EJK_OK;
    return ejki_fail(EJK_STATUS_INTERNAL, "kernel text %.64s has no entry %.64s (%d)",
                     m->source->name, entry, error);
}

static ejk_status new_function(int32_t device, const char *entry, ejki_cuda_function_t **out) {
    ejki_cuda_function_t *function = calloc(1, sizeof *function);
    char *name = strdup(entry);
    if (!function || !name) {
        free(function);
        free(name);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a kernel");
    }
    function->entry = name;
    function->device = device;
    *out = function;
    return EJK_OK;
}

/* Under the lock. */
static ejk_status function_of(module *m, const char *entry, ejki_cuda_function_t **out) {
    for (ejki_cuda_function_t *f = m->functions; f; f = f->next)
        if (strcmp(f->entry, entry) == 0) {
            *out = f;
            return EJK_OK;
        }
    ejki_cuda_function_t *f = NULL;
    EJKI_TRY(new_function(m->device, entry, &f));
    const ejk_status status = take_handle(m, entry, f);
    if (status != EJK_OK) {
        free(f->entry);
        free(f);
        return status;
    }
    f->next = m->functions;
    m->functions = f;
    *out = f;
    return EJK_OK;
}

void ejki_cuda_unload(ejki_cuda_trial *trial) {
    while (trial->modules) {
        module *m = trial->modules;
        bool pushed;
        trial->modules = m->next;
        if (ejki_cuda_enter(m->device, &pushed) == EJK_OK) {
            ejki_cuda_driver_get()->unload(m->handle);
            ejki_cuda_leave(pushed);
        }
        while (m->functions) {
            ejki_cuda_function_t *f = m->functions;
            m->functions = f->next;
            free(f->entry);
            free(f);
        }
        free(m);
    }
}

/* One that stands for all that were only built. */
static ejki_cuda_function_t built_only = {.device = -1};

static ejk_status build_ahead(ejki_cuda_target *target, const recipe *r,
                              ejki_cuda_function_t **out) {
    ejki_cuda_image image;
    const int32_t before = target->built;
    EJKI_TRY(obtain(r, &image));
    ejki_cuda_image_close(&image);
    if (target->built == before) target->found++;
    *out = &built_only;
    return EJK_OK;
}

/* A kernel that nobody has looked for yet, or of a trial or target of this thread. */
static ejk_status look_for(int32_t device, const recipe *r, const char *entry,
                           ejki_cuda_function_t **out) {
    module *m = NULL;
    ejki_cuda_target *target = ejki_cuda_target_get();
    ejki_cuda_trial *trial = ejki_cuda_trial_get();
    if (target) return build_ahead(target, r, out);
    if (trial) {
        EJKI_TRY(trial_module(trial, device, r, &m));
        return function_of(m, entry, out);
    }
    pthread_mutex_lock(&lock);
    ejk_status status = module_of(device, r, &m);
    if (status == EJK_OK) status = function_of(m, entry, out);
    pthread_mutex_unlock(&lock);
    return status;
}

ejk_status ejki_cuda_function(int32_t device, const ejki_cuda_source *source, const char *entry,
                              const ejki_cuda_constant *constants, int32_t count,
                              ejki_cuda_function_t **out) {
    const ejk_gpu_info *gpu;
    ejki_cuda_key key;
    module_name name;
    if (!source) return ejki_fail(EJK_STATUS_INTERNAL, "no text of kernel %.64s", entry);
    EJKI_TRY(ejki_cuda_gpu(device, &gpu));
    name_module(source, constants, count, &name);
    if (!ejki_cuda_target_get() && !ejki_cuda_trial_get()) {
        pthread_mutex_lock(&lock);
        module *m = find_loaded(device, source, &name);
        const ejk_status status = m ? function_of(m, entry, out) : EJK_OK;
        pthread_mutex_unlock(&lock);
        if (m) return status;
    }
    EJKI_TRY(ejki_cuda_key_make(gpu->architecture, source, constants, count, &key));
    const recipe r = {gpu->architecture, source, constants, count, &key, &name};
    return look_for(device, &r, entry, out);
}

enum { MOST_WISHES = 16 };

struct ahead {
    int32_t device, count;
    const ejki_cuda_wish *wishes[MOST_WISHES];
    ejki_cuda_key keys[MOST_WISHES];
};

/* Adds a wish unless its module is loaded, or wished for already. */
static void add_missing(struct ahead *a, const ejki_cuda_wish *w) {
    const ejk_gpu_info *gpu;
    ejki_cuda_key *key = &a->keys[a->count];
    module_name name;
    if (!w->source || ejki_cuda_gpu(a->device, &gpu) != EJK_OK) return;
    name_module(w->source, w->constants, w->count, &name);
    pthread_mutex_lock(&lock);
    const bool loaded = find_loaded(a->device, w->source, &name) != NULL;
    pthread_mutex_unlock(&lock);
    if (loaded ||
        ejki_cuda_key_make(gpu->architecture, w->source, w->constants, w->count, key) != EJK_OK)
        return;
    for (int32_t i = 0; i < a->count; i++)
        if (memcmp(&a->keys[i], key, sizeof *key) == 0) return;
    a->wishes[a->count++] = w;
}

static void make_one(void *ahead, int64_t index) {
    const struct ahead *a = ahead;
    const ejki_cuda_wish *w = a->wishes[index];
    ejki_cuda_function_t *unused;
    const ejk_status status =
        ejki_cuda_function(a->device, w->source, w->entry, w->constants, w->count, &unused);
    (void)status;
}

void ejki_cuda_make_ahead(int32_t device, const ejki_cuda_wish *wishes, int32_t count) {
    struct ahead ahead = {.device = device};
    ejk_threads *threads = NULL;
    /* What builds for another device, or for itself alone, is known by its thread. */
    if (ejki_cuda_target_get() || ejki_cuda_trial_get()) return;
    for (int32_t i = 0; i < count && ahead.count < MOST_WISHES; i++)
        add_missing(&ahead, &wishes[i]);
    const int32_t most = ejk_threads_default();
    if (ahead.count < 2 || most < 2 ||
        ejk_threads_create(ahead.count < most ? ahead.count : most, &threads) != EJK_OK)
        return;
    ejk_parallel_for(threads, ahead.count, make_one, &ahead);
    ejk_threads_destroy(threads);
}

ejki_cuda_usage ejki_cuda_function_usage(const ejki_cuda_function_t *function) {
    return function->usage;
}

/* ---- Launches --------------------------------------------------------------------------------------- */

static int launch_overlapping(const ejki_cuda_function_t *f, const ejki_cuda_launch *how,
                              void *const *arguments) {
    ejki_cu_launch_attribute attribute = {.id = EJKI_CU_PROGRAMMATIC_SERIALIZATION};
    attribute.value.number = 1;
    const ejki_cu_launch_config config = {
        .grid = {how->grid[0], how->grid[1], how->grid[2]},
        .block = {how->block[0], how->block[1], how->block[2]},
        .shared_bytes = how->shared_bytes,
        .stream = how->stream,
        .attributes = &attribute,
        .attribute_count = 1,
    };
    return ejki_cuda_driver_get()->launch_with(&config, f->handle, (void **)(uintptr_t)arguments,
                                               NULL);
}

static int launch(const ejki_cuda_function_t *f, const ejki_cuda_launch *how,
                  void *const *arguments) {
    if (how->overlaps) return launch_overlapping(f, how, arguments);
    return ejki_cuda_driver_get()->launch(
        f->handle, how->grid[0], how->grid[1], how->grid[2], how->block[0], how->block[1],
        how->block[2], how->shared_bytes, how->stream, (void **)(uintptr_t)arguments, NULL);
}

static int launch_metered(ejki_cuda_meter *meter, const ejki_cuda_function_t *f,
                          const ejki_cuda_launch *how, void *const *arguments) {
    const double start = ejk_now();
    const int error = launch(f, how, arguments);
    meter->seconds += ejk_now() - start;
    meter->launches++;
    return error;
}

static ejk_status launched(const ejki_cuda_function_t *f, int error) {
    if (error == EJKI_CU_SUCCESS) return EJK_OK;
    char doing[128];
    snprintf(doing, sizeof doing, "kernel %.64s cannot be launched", f->entry);
    return ejki_cuda_check(error, doing);
}

ejk_status ejki_cuda_run(ejki_cuda_function_t *f, const ejki_cuda_launch *how,
                         void *const *arguments) {
    bool pushed;
    if (f->device < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "a kernel that was only built for an architecture cannot be launched");
    EJKI_TRY(ejki_cuda_enter(f->device, &pushed));
    const int error = current_meter ? launch_metered(current_meter, f, how, arguments)
                                    : launch(f, how, arguments);
    ejki_cuda_leave(pushed);
    return launched(f, error);
}

void ejki_cuda_meter_set(ejki_cuda_meter *meter) {
    current_meter = meter;
}

ejk_status ejki_cuda_run_bare(ejki_cuda_function_t *f, const ejki_cuda_launch *how,
                              void *const *arguments, int32_t times, double *seconds) {
    bool pushed;
    int error = EJKI_CU_SUCCESS;
    EJKI_TRY(ejki_cuda_enter(f->device, &pushed));
    const double start = ejk_now();
    for (int32_t i = 0; i < times && error == EJKI_CU_SUCCESS; i++)
        error = launch(f, how, arguments);
    *seconds = (ejk_now() - start) / times;
    ejki_cuda_leave(pushed);
    return launched(f, error);
}

ejk_status ejk_cuda_look(ejk_cuda_info *out) {
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put it");
    ejk_cuda_info info = {.driver = ejki_cuda_driver_version()};
    snprintf(info.driver_build, sizeof info.driver_build, "%s", ejki_cuda_driver_get()->build);
    if (ejki_nvrtc_load(&info.nvrtc) == EJK_OK)
        snprintf(info.nvrtc_path, sizeof info.nvrtc_path, "%s", ejki_nvrtc_path());
    ejki_cuda_cache_look(&info);
    *out = info;
    return EJK_OK;
}
