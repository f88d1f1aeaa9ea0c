/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels compiled, kept on disk and found again, and everything that may be missing or broken on the way. No GPU
 * is needed: driver and compiler are the tests' own, but for the last test, which asks NVRTC where there is one.
 */
#include "cuda/cuda_world.h"
#include "device/cuda_driver.h"

#include <dirent.h>
#include <ejkernel/ejkernel.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static const ejki_cuda_source pair_source = {"pair.cu",
                                             "extern \"C\" __global__ void first() {}\n"
                                             "#include \"kernels/cuda/element.cuh\"\n"
                                             "extern \"C\" __global__ void second() {}\n"};

static ejk_status get(const char *entry, int64_t number, ejki_cuda_function_t **out) {
    const ejki_cuda_constant constants[] = {{"NUMBER", number}};
    return ejki_cuda_function(0, &pair_source, entry, constants, 1, out);
}

static bool listen_and_get(int64_t number) {
    ejki_cuda_function_t *function;
    ejki_cuda_listen((ejki_cuda_listener){events_add, &events});
    WORKS(get("first", number, &function));
    ejki_cuda_listen((ejki_cuda_listener){NULL, NULL});
    return true;
}

/* ---- What may be missing ---------------------------------------------------------------------------- */

static bool no_gpu(const char *words) {
    int32_t count = 77;
    ejk_gpu_info info = {.capability = 77};
    ejki_cuda_function_t *function;
    void *memory;
    FAILS(UNAVAILABLE, words, ejk_device_count(&count));
    FAILS(UNAVAILABLE, words, ejk_device_info(0, &info));
    FAILS(UNAVAILABLE, words, ejk_device_allocate(0, 8, &memory));
    FAILS(UNAVAILABLE, words, ejk_device_synchronise(0, NULL));
    FAILS(UNAVAILABLE, words, get("first", 1, &function));
    HOLDS(count == 77 && info.capability == 77);
    ejk_registry *registry;
    ejk_platform platform;
    WORKS(ejk_registry_create(&registry));
    WORKS(ejk_registry_add_builtin(registry));
    FAILS(UNAVAILABLE, words,
          ejk_detect_platform(registry, "attention_merge", EJK_PLATFORM_CUDA, &platform));
    WORKS(ejk_detect_platform(registry, "attention_merge", EJK_PLATFORM_AUTO, &platform));
    HOLDS(platform == EJK_PLATFORM_SIMD);
    ejk_registry_destroy(registry);
    return true;
}

static bool without_a_driver(const void *unused) {
    (void)unused;
    setenv("EJKERNEL_CUDA_LIBRARY", in_folder("nothing.so"), 1);
    ejk_cuda_info info;
    WORKS(ejk_cuda_look(&info));
    HOLDS(info.driver == 0 && info.nvrtc == 13000);
    return no_gpu("no GPU: NVIDIA's driver cannot be loaded");
}

static bool with_another_library(const void *unused) {
    (void)unused;
    setenv("EJKERNEL_CUDA_LIBRARY", FAKE_NVRTC, 1);
    return no_gpu("has no function cuInit");
}

static bool with_an_old_driver(const void *unused) {
    (void)unused;
    setenv("FAKE_CUDA_VERSION", "11080", 1);
    return no_gpu("the driver serves CUDA 11.8, expected 12.0");
}

static bool without_a_device(const void *unused) {
    (void)unused;
    setenv("FAKE_CUDA_DEVICES", "0", 1);
    return no_gpu("the driver knows of no device");
}

static void gpus_that_are_not_there(void **state) {
    (void)state;
    IN_CHILD(without_a_driver);
    IN_CHILD(with_another_library);
    IN_CHILD(with_an_old_driver);
    IN_CHILD(without_a_device);
}

static bool without_nvrtc(const void *unused) {
    (void)unused;
    ejki_cuda_function_t *function = NULL;
    setenv("EJKERNEL_NVRTC_LIBRARY", in_folder("nothing.so"), 1);
    FAILS(UNAVAILABLE, "NVRTC cannot be loaded from EJKERNEL_NVRTC_LIBRARY",
          get("first", 1, &function));
    FAILS(UNAVAILABLE, "nothing.so", get("first", 1, &function)); /* the same again */
    HOLDS(function == NULL && compiled() == 0);
    return true;
}

static bool with_an_old_nvrtc(const void *unused) {
    (void)unused;
    ejki_cuda_function_t *function;
    setenv("FAKE_NVRTC_VERSION", "11080", 1);
    FAILS(UNAVAILABLE, "is no NVRTC of CUDA 12 or later", get("first", 1, &function));
    return true;
}

static bool texts_that_do_not_compile(const void *unused) {
    (void)unused;
    static const ejki_cuda_source wrong = {"wrong.cu", "#error no\n"},
                                  lost = {"lost.cu", " # include \"nowhere.cuh\"\n"};
    const ejki_cuda_constant serialised[] = {{"SERIALISED", 1}};
    ejki_cuda_function_t *function = NULL;
    FAILS(UNAVAILABLE, "wrong.cu cannot be compiled for sm_90a by NVRTC 13.0: test.cu(3): error",
          ejki_cuda_function(0, &wrong, "first", NULL, 0, &function));
    FAILS(INTERNAL, "lost.cu includes nowhere.cuh, which is not there",
          ejki_cuda_function(0, &lost, "first", NULL, 0, &function));
    FAILS(UNAVAILABLE, "pair.cu for sm_90a is refused, as its wgmma would be serialised: C7510",
          ejki_cuda_function(0, &pair_source, "first", serialised, 1, &function));
    FAILS(INTERNAL, "pair.cu has no entry third", get("third", 1, &function));
    FAILS(INVALID_ARGUMENT, "device is 2, expected 0 to 1",
          ejki_cuda_function(2, &pair_source, "first", NULL, 0, &function));
    FAILS(INTERNAL, "no text",
          ejki_cuda_function(0, ejki_cuda_text("none.cu"), "first", NULL, 0, &function));
    HOLDS(function == NULL);
    WORKS(get("first", 1, &function)); /* a text that was refused does not stand in another's way */
    return true;
}

static void kernels_that_cannot_be_made(void **state) {
    (void)state;
    IN_CHILD(without_nvrtc);
    IN_CHILD(with_an_old_nvrtc);
    IN_CHILD(texts_that_do_not_compile);
}

/* ---- Once per process ------------------------------------------------------------------------------- */

static void *get_it(void *out) {
    ejki_cuda_function_t *function = NULL;
    if (get("first", 1, &function) == EJK_OK) *(ejki_cuda_function_t **)out = function;
    return NULL;
}

static bool one_process(const void *unused) {
    (void)unused;
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    ejki_cuda_function_t *functions[THREADS] = {NULL}, *second, *other;
    setenv("FAKE_NVRTC_PAUSE_US", "20000", 1);
    for (int i = 0; i < THREADS; i++)
        HOLDS(pthread_create(&threads[i], NULL, get_it, &functions[i]) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) HOLDS(functions[i] && functions[i] == functions[0]);
    WORKS(get("second", 1, &second));
    HOLDS(compiled() == 1 && seen()->loaded == 1 && seen()->retained == 1);
    WORKS(get("first", 2, &other));
    HOLDS(compiled() == 2 && other != functions[0] && second != functions[0]);
    HOLDS(ejki_cuda_function_usage(second).registers == 40);
    HOLDS(ejki_cuda_function_usage(second).shared_bytes == 256);
    HOLDS(seen()->shared_allowed == 232448 - 256);
    const ejki_cuda_constant constants[] = {{"NUMBER", 1}};
    WORKS(ejki_cuda_function(1, &pair_source, "first", constants, 1, &other));
    HOLDS(compiled() == 2 && seen()->loaded == 3 && seen()->retained == 2);
    return true;
}

static bool launches(const void *unused) {
    (void)unused;
    ejki_cuda_function_t *function;
    int number = 7, stream;
    void *arguments[] = {&number};
    ejki_cuda_launch how = {.grid = {5, 1, 1}, .block = {64, 1, 1}, .stream = &stream};
    WORKS(get("first", 1, &function));
    WORKS(ejki_cuda_run(function, &how, arguments));
    HOLDS(seen()->launches == 1 && seen()->grid == 5 && seen()->block == 64);
    HOLDS(seen()->stream == &stream && seen()->argument == &number);
    how.shared_bytes = 300000;
    FAILS(INTERNAL, "kernel first cannot be launched: CUDA says: fault (1)",
          ejki_cuda_run(function, &how, arguments));
    ejki_cuda_target target;
    WORKS(ejki_cuda_target_begin(&target, "sm_80"));
    WORKS(get("first", 3, &function));
    ejki_cuda_target_end();
    FAILS(INVALID_ARGUMENT, "only built", ejki_cuda_run(function, &how, arguments));
    HOLDS(target.built == 1 && target.found == 0);
    FAILS(INVALID_ARGUMENT, "'sm_7', expected one of sm_80, ",
          ejki_cuda_target_begin(&target, "sm_7"));
    return true;
}

static bool tensor_maps(const void *unused) {
    (void)unused;
    const int64_t sizes[] = {64, 100, 3}, strides[] = {128, 12800}, odd[] = {128, 12808};
    const int32_t box[] = {64, 32, 1}, wide[] = {512, 1, 1};
    ejki_cuda_tensor_map map;
    bool pushed;
    void *data = (void *)(uintptr_t)4096;
    FAILS(INVALID_LAYOUT, "of 3 axes, the first of 64 elements (201)",
          ejki_cuda_tensor_map_encode(data, EJK_DTYPE_BF16, 3, sizes, strides, box, 128, &map));
    WORKS(ejki_cuda_enter(0, &pushed));
    WORKS(ejki_cuda_tensor_map_encode(data, EJK_DTYPE_BF16, 3, sizes, strides, box, 128, &map));
    HOLDS(map.opaque[0] == 4096 && map.opaque[1] == 9 && map.opaque[2] == 3 && map.opaque[3] == 3);
    HOLDS(map.opaque[4] == 64 && map.opaque[5] == 64 && map.opaque[6] == 100);
    HOLDS(map.opaque[7] == 128 && map.opaque[8] == 32 && (uintptr_t)&map % 64 == 0);
    WORKS(ejki_cuda_tensor_map_encode(data, EJK_DTYPE_F32, 1, sizes, strides, box, 0, &map));
    FAILS(INVALID_LAYOUT, "lies at 0x1008, expected a multiple of 16 bytes",
          ejki_cuda_tensor_map_encode((char *)data + 8, EJK_DTYPE_F16, 1, sizes, strides, box, 0,
                                      &map));
    FAILS(INVALID_LAYOUT, "axis 2 has a stride of 12808 bytes",
          ejki_cuda_tensor_map_encode(data, EJK_DTYPE_F16, 3, sizes, odd, box, 0, &map));
    FAILS(INVALID_LAYOUT, "the driver refuses a tensor map of 1 axes, the first of 64 elements (1)",
          ejki_cuda_tensor_map_encode(data, EJK_DTYPE_F16, 1, sizes, strides, wide, 0, &map));
    FAILS(INVALID_ARGUMENT, "of 6 axes of float16 under a swizzle of 0 bytes",
          ejki_cuda_tensor_map_encode(data, EJK_DTYPE_F16, 6, sizes, strides, box, 0, &map));
    FAILS(INVALID_ARGUMENT, "a swizzle of 48 bytes",
          ejki_cuda_tensor_map_encode(data, EJK_DTYPE_F16, 1, sizes, strides, box, 48, &map));
    FAILS(INVALID_ARGUMENT, "axes of int32",
          ejki_cuda_tensor_map_encode(data, EJK_DTYPE_I32, 1, sizes, strides, box, 0, &map));
    ejki_cuda_leave(pushed);
    return true;
}

static void kernels_of_a_process(void **state) {
    (void)state;
    IN_CHILD(one_process);
    IN_CHILD(launches);
    IN_CHILD(tensor_maps);
}

/* ---- On disk ---------------------------------------------------------------------------------------- */

/* Files of the cache whose names end so; the last one's path. */
static int count_files(const char *end, char path[512]) {
    int count = 0;
    DIR *folder = opendir(in_folder("cubins"));
    if (!folder) return 0;
    for (const struct dirent *entry; (entry = readdir(folder));) {
        const size_t length = strlen(entry->d_name);
        if (length < strlen(end) || strcmp(entry->d_name + length - strlen(end), end) != 0)
            continue;
        if (path) snprintf(path, 512, "%s/%s", in_folder("cubins"), entry->d_name);
        count++;
    }
    closedir(folder);
    return count;
}

static bool get_one(const void *unused) {
    (void)unused;
    return listen_and_get(1);
}

static bool get_from_elsewhere(const void *unused) {
    (void)unused;
    setenv("EJKERNEL_NVRTC_LIBRARY", in_folder("nothing.so"), 1);
    return listen_and_get(1);
}

static bool get_with_a_later_nvrtc(const void *unused) {
    (void)unused;
    setenv("FAKE_NVRTC_VERSION", "13010", 1);
    setenv("LD_LIBRARY_PATH", "elsewhere",
           1); /* another place to look in: the version is asked anew */
    return listen_and_get(1);
}

static void kernels_are_found_by_other_processes(void **state) {
    (void)state;
    IN_CHILD(get_one);
    assert_int_equal(compiled(), 1);
    assert_int_equal(count_files("-13.0.cubin", NULL), 1);
    IN_CHILD(get_one);
    IN_CHILD(get_from_elsewhere); /* no compiler is needed for what is there */
    assert_int_equal(compiled(), 1);
    IN_CHILD(get_with_a_later_nvrtc);
    assert_int_equal(compiled(), 2);
    assert_int_equal(count_files("-13.1.cubin", NULL), 1);
    assert_int_equal(count_files(".cubin", NULL), 2);
    assert_int_equal(count_files(".tmp", NULL), 0);
}

static bool get_over_damage(const void *unused) {
    (void)unused;
    if (!listen_and_get(1)) return false;
    HOLDS(events_of("cuda_cache_rejected") == 1 && events_of("cuda_kernel_compiled") == 1);
    HOLDS(strstr(events_fields("cuda_cache_rejected"), "\"kernel\":\"pair.cu\"") != NULL);
    return true;
}

static bool get_sound(const void *unused) {
    (void)unused;
    if (!listen_and_get(1)) return false;
    HOLDS(events.count == 0);
    return true;
}

static void damaged_files_are_made_anew(void **state) {
    (void)state;
    static char content[1 << 16];
    char path[512];
    IN_CHILD(get_one);
    assert_int_equal(count_files(".cubin", path), 1);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t size = fread(content, 1, sizeof content, file);
    fclose(file);
    assert_in_range(size, 120, sizeof content - 1);
    /* A bit anywhere: magic, sizes, key, checksum, machine code, log. */
    static const int places[] = {0, 9, 17, 30, 60, 90, -2, -40};
    int made = 1;
    for (size_t i = 0; i <= sizeof places / sizeof *places + 3; i++) {
        file = fopen(path, "wb");
        if (i < sizeof places / sizeof *places) {
            const size_t place = places[i] < 0 ? size - (size_t)-places[i] : (size_t)places[i];
            content[place] ^= 4;
            fwrite(content, 1, size, file);
            content[place] ^= 4;
        } else {
            static const size_t lengths[] = {0, 7, 0, 0};
            const size_t kept = lengths[i - sizeof places / sizeof *places];
            fwrite(content, 1, i % 2 ? kept : size - 1 - kept, file);
        }
        fclose(file);
        IN_CHILD(get_over_damage);
        assert_int_equal(compiled(), ++made);
        IN_CHILD(get_sound);
        assert_int_equal(compiled(), made);
    }
}

static bool get_degraded(const void *unused) {
    (void)unused;
    if (!listen_and_get(1)) return false;
    HOLDS(events_of("cuda_cache_degraded") == 1);
    ejki_cuda_function_t *function;
    WORKS(get("second", 1, &function)); /* it is there for this process */
    return true;
}

static bool with_a_file_for_a_folder(const void *unused) {
    (void)unused;
    FILE *file = fopen(in_folder("cubins"), "w");
    HOLDS(file && fclose(file) == 0);
    if (!get_degraded(NULL)) return false;
    HOLDS(compiled() == 1);
    return true;
}

/* Root may write anywhere, and so becomes somebody else; who may not do that either has a file for a folder. */
static bool with_a_folder_to_read(const void *unused) {
    (void)unused;
    enum { NOBODY = 65534 };
    ejk_cuda_info loads_driver_and_compiler;
    WORKS(ejk_cuda_look(&loads_driver_and_compiler));
    HOLDS(mkdir(in_folder("locked"), 0555) == 0 && chmod(in_folder("."), 0755) == 0);
    setenv("EJKERNEL_CUDA_CACHE", in_folder("locked/cubins"), 1);
    if (geteuid() == 0 && seteuid(NOBODY) != 0)
        setenv("EJKERNEL_CUDA_CACHE", in_folder("count/cubins"), 1);
    return get_degraded(NULL);
}

static bool on_a_full_disk(const void *unused) {
    (void)unused;
    signal(SIGXFSZ, SIG_IGN);
    unsetenv("FAKE_NVRTC_COUNT");
    const struct rlimit most = {100, 100};
    HOLDS(setrlimit(RLIMIT_FSIZE, &most) == 0);
    if (!get_degraded(NULL)) return false;
    HOLDS(count_files(".cubin", NULL) == 0 && count_files(".tmp", NULL) == 0);
    return true;
}

static void folders_that_cannot_be_written(void **state) {
    (void)state;
    IN_CHILD(with_a_file_for_a_folder);
    unlink(in_folder("cubins"));
    IN_CHILD(with_a_folder_to_read);
    IN_CHILD(on_a_full_disk);
}

static void processes_at_once(void **state) {
    (void)state;
    enum { PROCESSES = 6 };
    pid_t children[PROCESSES];
    setenv("FAKE_NVRTC_PAUSE_US", "30000", 1);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0) _exit(get_one(NULL) ? 0 : 1);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = 1;
        waitpid(children[i], &status, 0);
        assert_int_equal(status, 0);
    }
    unsetenv("FAKE_NVRTC_PAUSE_US");
    assert_in_range(compiled(), 1, PROCESSES);
    const int before = compiled();
    assert_int_equal(count_files(".cubin", NULL), 1);
    assert_int_equal(count_files(".tmp", NULL), 0);
    IN_CHILD(get_sound);
    assert_int_equal(compiled(), before);
}

static bool more_than_there_may_be(const void *unused) {
    (void)unused;
    ejk_cuda_info info;
    for (int64_t number = 0; number < 12; number++) {
        if (!listen_and_get(number)) return false;
        usleep(3000); /* their ages differ */
    }
    WORKS(ejk_cuda_look(&info));
    HOLDS(info.cache_limit == 20000 && info.cached_bytes <= 20000);
    HOLDS(info.cached_kernels >= 1 && info.cached_kernels < 12);
    HOLDS(strcmp(info.cache_folder, in_folder("cubins")) == 0);
    return true;
}

static bool the_newest_is_there(const void *unused) {
    (void)unused;
    const int before = compiled();
    if (!listen_and_get(11)) return false;
    HOLDS(compiled() == before);
    if (!listen_and_get(0)) return false;
    HOLDS(compiled() == before + 1);
    return true;
}

static void the_oldest_files_give_way(void **state) {
    (void)state;
    setenv("EJKERNEL_CUDA_CACHE_BYTES", "20000", 1);
    IN_CHILD(more_than_there_may_be);
    IN_CHILD(the_newest_is_there);
    unsetenv("EJKERNEL_CUDA_CACHE_BYTES");
}

static bool folder_is(const char *wanted) {
    ejk_cuda_info info;
    WORKS(ejk_cuda_look(&info));
    HOLDS(strcmp(info.cache_folder, wanted) == 0);
    return true;
}

static bool folders_by_name(const void *unused) {
    (void)unused;
    setenv("HOME", "/house", 1);
    setenv("EJKERNEL_CUDA_CACHE", "~/kernels", 1);
    if (!folder_is("/house/kernels")) return false;
    setenv("EJKERNEL_CUDA_CACHE", "", 1);
    setenv("EJKERNEL_CACHE_DIR", "/some/folder", 1);
    if (!folder_is("/some/folder/cuda")) return false;
    setenv("EJKERNEL_CACHE_DIR", "/some/file.db", 1);
    if (!folder_is("/some/cuda")) return false;
    setenv("EJKERNEL_CACHE_DIR", "", 1);
    setenv("XDG_CACHE_HOME", "/xdg", 1);
    if (!folder_is("/xdg/ejkernel/cuda")) return false;
    unsetenv("XDG_CACHE_HOME");
    return folder_is("/house/.cache/ejkernel/cuda");
}

static void where_the_folder_is(void **state) {
    (void)state;
    IN_CHILD(folders_by_name);
}

/* ---- The real compiler ------------------------------------------------------------------------------ */

static int spilled(const char *log) {
    int most = 0, bytes;
    for (const char *at = log; (at = strstr(at, " bytes spill stores")); at++) {
        const char *number = at;
        while (number > log && number[-1] >= '0' && number[-1] <= '9') number--;
        if (sscanf(number, "%d", &bytes) == 1 && bytes > most) most = bytes;
    }
    return most;
}

/* The kernel of attention_merge, wide and narrow. */
static bool merge_compiles(void) {
    static const char *const architectures[] = {"sm_80", "sm_90a"};
    static const int64_t types[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16};
    for (int i = 0; i < 6; i++) {
        const int64_t type = types[i / 2], vector = i & 1 ? 1 : type == EJK_DTYPE_F32 ? 4 : 8;
        const ejki_cuda_constant constants[] = {{"ELEMENT", type},
                                                {"OUT", i < 4 ? type : EJK_DTYPE_F32},
                                                {"VECTOR", vector},
                                                {"LANES", vector == 1 ? 32 : 16}};
        ejki_cuda_image image;
        WORKS(ejki_cuda_compile(architectures[i / 2 % 2],
                                ejki_cuda_text("operations/attention/merge/cuda/merge.cu"),
                                constants, 4, &image));
        HOLDS(image.size > 1000 && strstr(image.log, "registers"));
        HOLDS(spilled(image.log) <= 16);
        ejki_cuda_image_close(&image);
    }
    static const ejki_cuda_source wrong = {"wrong.cu", "__global__ void f() { g(); }\n"};
    ejki_cuda_image image;
    FAILS(UNAVAILABLE, "wrong.cu(1): error", ejki_cuda_compile("sm_90a", &wrong, NULL, 0, &image));
    return true;
}

/* In this process, which is the last one to need NVRTC: a child would have a minute only. */
static void the_real_compiler_takes_the_texts(void **state) {
    (void)state;
    ejk_cuda_info info;
    unsetenv("EJKERNEL_NVRTC_LIBRARY");
    EXPECT_OK(ejk_cuda_look(&info));
    if (!info.nvrtc) skip();
    assert_true(merge_compiles());
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
    const struct CMUnitTest tests[] = {
        TEST(gpus_that_are_not_there),     TEST(kernels_that_cannot_be_made),
        TEST(kernels_of_a_process),        TEST(kernels_are_found_by_other_processes),
        TEST(damaged_files_are_made_anew), TEST(folders_that_cannot_be_written),
        TEST(processes_at_once),           TEST(the_oldest_files_give_way),
        TEST(where_the_folder_is),         TEST(the_real_compiler_takes_the_texts),
    };
    return cmocka_run_group_tests_name("cuda_kernels", tests, NULL, NULL);
}
