/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda by dlopen, once per process, and the devices it has. */
#include "device/cuda_driver.h"
#include "device/fork.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What kernels, primary contexts and stream capture as used here need. */
enum { LEAST_VERSION = 12000, MOST_DEVICES = 64 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static ejk_status verdict;
static unsigned forks;     /* when the verdict was found */
static char sentence[512]; /* why there is nothing */
static ejki_cuda_driver driver;
static int32_t device_count;
static struct device {
    ejki_cu_device handle;
    ejk_gpu_info info;
    pthread_mutex_t lock; /* held while `context` is retained */
    void *context;
} devices[MOST_DEVICES];

static ejk_status find_symbols(void *library, const char *path) {
#define FIND(member, symbol, parameters)                                                           \
    {                                                                                              \
        void *found = dlsym(library, symbol);                                                      \
        if (!found)                                                                                \
            return ejki_fail(EJK_STATUS_UNAVAILABLE,                                               \
                             "no GPU: %.128s has no function %s, expected a driver of CUDA 12 "    \
                             "or later",                                                           \
                             path, symbol);                                                        \
        memcpy(&driver.member, &found, sizeof found);                                              \
    }
    EJKI_CU_LIST(FIND)
#undef FIND
#define FIND(member, symbol, parameters)                                                           \
    {                                                                                              \
        void *found = dlsym(library, symbol);                                                      \
        memcpy(&driver.member, &found, sizeof found);                                              \
    }
    EJKI_CU_OPTIONAL_LIST(FIND)
#undef FIND
    return EJK_OK;
}

/* The kernel module tells its version; inside containers it may not be seen. */
static void read_build(void) {
    FILE *file = fopen("/sys/module/nvidia/version", "r");
    if (!file) return;
    if (!fgets(driver.build, sizeof driver.build, file)) driver.build[0] = '\0';
    driver.build[strcspn(driver.build, "\n")] = '\0';
    fclose(file);
}

static int attribute_of(ejki_cu_device handle, int attribute) {
    int value = 0;
    return driver.attribute(&value, attribute, handle) == EJKI_CU_SUCCESS ? value : 0;
}

/* Bars and control characters separate things in fingerprints. */
static void clean(char *name) {
    for (char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == '|') *c = ' ';
}

/* From Hopper on, what is fast is only in the instructions of one architecture, marked "a". */
static void name_architecture(ejk_gpu_info *info) {
    snprintf(info->architecture, sizeof info->architecture, "sm_%d%s", (int)info->capability,
             info->capability >= 90 ? "a" : "");
}

static bool describe(int index, struct device *out) {
    size_t bytes = 0;
    if (driver.device(&out->handle, index) != EJKI_CU_SUCCESS) return false;
    ejk_gpu_info *info = &out->info;
    if (driver.name(info->name, (int)sizeof info->name, out->handle) != EJKI_CU_SUCCESS)
        snprintf(info->name, sizeof info->name, "GPU");
    clean(info->name);
    if (driver.memory(&bytes, out->handle) == EJKI_CU_SUCCESS) info->memory_bytes = (int64_t)bytes;
    info->capability = 10 * attribute_of(out->handle, EJKI_CU_CAPABILITY_MAJOR) +
                       attribute_of(out->handle, EJKI_CU_CAPABILITY_MINOR);
    info->multiprocessors = attribute_of(out->handle, EJKI_CU_MULTIPROCESSORS);
    info->clock_mhz = attribute_of(out->handle, EJKI_CU_CLOCK_KHZ) / 1000;
    info->l2_bytes = attribute_of(out->handle, EJKI_CU_L2_BYTES);
    info->shared_bytes = attribute_of(out->handle, EJKI_CU_SHARED_OPTIN);
    name_architecture(info);
    snprintf(info->fingerprint, sizeof info->fingerprint, "gpu|%s; %d.%d; %d.%d", info->name,
             (int)info->capability / 10, (int)info->capability % 10, driver.loaded_version / 1000,
             driver.loaded_version % 1000 / 10);
    pthread_mutex_init(&out->lock, NULL);
    return true;
}

static ejk_status load(void) {
    const char *wish = getenv("EJKERNEL_CUDA_LIBRARY");
    const char *path = wish && *wish ? wish : "libcuda.so.1";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        return ejki_fail(EJK_STATUS_UNAVAILABLE, "no GPU: NVIDIA's driver cannot be loaded: %.300s",
                         reason ? reason : path);
    }
    EJKI_TRY(find_symbols(library, path));
    EJKI_TRY(ejki_forks_watch());
    int version = 0, count = 0;
    if (driver.version(&version) != EJKI_CU_SUCCESS || version < LEAST_VERSION)
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "no GPU: the driver serves CUDA %d.%d, expected %d.0 or later",
                         version / 1000, version % 1000 / 10, LEAST_VERSION / 1000);
    driver.loaded_version = version;
    read_build();
    int error = driver.init(0);
    if (error == EJKI_CU_SUCCESS) error = driver.count(&count);
    if (error == EJKI_CU_NO_DEVICE || (error == EJKI_CU_SUCCESS && count < 1))
        return ejki_fail(EJK_STATUS_UNAVAILABLE, "no GPU: the driver knows of no device");
    if (error != EJKI_CU_SUCCESS) {
        const char *words = NULL;
        driver.error_text(error, &words);
        return ejki_fail(EJK_STATUS_UNAVAILABLE, "no GPU: the driver cannot be used: %.200s (%d)",
                         words ? words : "error", error);
    }
    while (device_count < count && device_count < MOST_DEVICES &&
           describe(device_count, &devices[device_count]))
        device_count++;
    if (device_count) return EJK_OK;
    return ejki_fail(EJK_STATUS_UNAVAILABLE, "no GPU: the driver's first device cannot be used");
}

static void look(void) {
    verdict = load();
    forks = atomic_load_explicit(&ejki_forks, memory_order_relaxed);
    if (verdict != EJK_OK) snprintf(sentence, sizeof sentence, "%s", ejk_last_error());
}

ejk_status ejki_cuda_available(void) {
    pthread_once(&once, look);
    if (verdict != EJK_OK) return ejki_fail(verdict, "%s", sentence);
    if (atomic_load_explicit(&ejki_forks, memory_order_relaxed) != forks)
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "no GPU: this process is the child of a fork of one that used CUDA, which "
                         "cannot be used in both; expected GPUs to be used after the fork only");
    return EJK_OK;
}

const ejki_cuda_driver *ejki_cuda_driver_get(void) {
    return &driver;
}

int ejki_cuda_driver_version(void) {
    pthread_once(&once, look);
    return driver.loaded_version;
}

ejk_status ejki_cuda_check(int error, const char *doing) {
    if (error == EJKI_CU_SUCCESS) return EJK_OK;
    const char *words = NULL;
    driver.error_text(error, &words);
    return ejki_fail(error == EJKI_CU_OUT_OF_MEMORY ? EJK_STATUS_OUT_OF_MEMORY
                                                    : EJK_STATUS_INTERNAL,
                     "%s: CUDA says: %.200s (%d)", doing, words ? words : "error", error);
}

/* ---- Devices ---------------------------------------------------------------------------------------- */

static ejk_status find(int32_t index, struct device **out) {
    EJKI_TRY(ejki_cuda_available());
    if (index < 0 || index >= device_count)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "device is %d, expected 0 to %d", (int)index,
                         (int)device_count - 1);
    *out = &devices[index];
    return EJK_OK;
}

ejk_status ejki_cuda_gpu(int32_t device, const ejk_gpu_info **out) {
    const ejki_cuda_target *target = ejki_cuda_target_get();
    if (target) {
        *out = &target->gpu;
        return EJK_OK;
    }
    struct device *found = NULL;
    EJKI_TRY(find(device, &found));
    *out = &found->info;
    return EJK_OK;
}

ejk_status ejk_device_count(int32_t *out) {
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put it");
    EJKI_TRY(ejki_cuda_available());
    *out = device_count;
    return EJK_OK;
}

ejk_status ejk_device_info(int32_t index, ejk_gpu_info *out) {
    const ejk_gpu_info *found = NULL;
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put it");
    EJKI_TRY(ejki_cuda_gpu(index, &found));
    *out = *found;
    return EJK_OK;
}

/* ---- Contexts --------------------------------------------------------------------------------------- */

static ejk_status context_of(struct device *device, void **out) {
    void *context = __atomic_load_n(&device->context, __ATOMIC_ACQUIRE);
    ejk_status status = EJK_OK;
    if (!context) {
        pthread_mutex_lock(&device->lock);
        context = device->context;
        if (!context) {
            status = ejki_cuda_check(driver.retain(&context, device->handle),
                                     "the primary context of a GPU cannot be had");
            if (status == EJK_OK) __atomic_store_n(&device->context, context, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&device->lock);
    }
    if (status == EJK_OK) *out = context;
    return status;
}

ejk_status ejki_cuda_enter(int32_t index, bool *pushed) {
    struct device *device = NULL;
    void *wanted = NULL, *current = NULL;
    EJKI_TRY(find(index, &device));
    EJKI_TRY(context_of(device, &wanted));
    *pushed = false;
    if (driver.current(&current) == EJKI_CU_SUCCESS && current == wanted) return EJK_OK;
    EJKI_TRY(ejki_cuda_check(driver.push(wanted), "the context of a GPU cannot be made current"));
    *pushed = true;
    return EJK_OK;
}

void ejki_cuda_leave(bool pushed) {
    void *context;
    if (pushed) driver.pop(&context);
}
