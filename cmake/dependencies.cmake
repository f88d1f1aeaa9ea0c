# SPDX-License-Identifier: Apache-2.0
# The libraries that ours is made with. Its users need none of their headers.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(jansson REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(libcrypto REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(sqlite3 REQUIRED IMPORTED_TARGET sqlite3)
find_package(PNG REQUIRED)
pkg_check_modules(cpuinfo REQUIRED IMPORTED_TARGET libcpuinfo)

find_library(PTHREADPOOL_LIBRARY pthreadpool REQUIRED)
find_path(PTHREADPOOL_INCLUDE_DIR pthreadpool.h REQUIRED)
add_library(pthreadpool INTERFACE IMPORTED)
target_link_libraries(pthreadpool INTERFACE ${PTHREADPOOL_LIBRARY})
target_include_directories(pthreadpool INTERFACE ${PTHREADPOOL_INCLUDE_DIR})

# Header-only: the generator of random numbers.
find_path(RANDOM123_INCLUDE_DIR Random123/threefry.h REQUIRED)
add_library(random123 INTERFACE IMPORTED)
target_include_directories(random123 INTERFACE ${RANDOM123_INCLUDE_DIR})

set(EJK_PRIVATE_LIBRARIES random123 PkgConfig::jansson PkgConfig::libcrypto PkgConfig::sqlite3 PNG::PNG
    PkgConfig::cpuinfo pthreadpool m Threads::Threads)
if(EJK_TESTS)
  pkg_check_modules(cmocka REQUIRED IMPORTED_TARGET cmocka)
endif()
