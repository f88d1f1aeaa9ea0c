# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: libraries, headers, pkg-config file, CMake package, man page.
# The package offers the shared library, whose users need nothing else. Who links the static one adds the
# private libraries that `pkg-config --static` lists.
include(CMakePackageConfigHelpers)

install(TARGETS ejkernel EXPORT ejkernel)
install(TARGETS ejkernel_static)
install(DIRECTORY include/ejkernel DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ejkernel)
configure_package_config_file(cmake/ejkernel-config.cmake.in ejkernel-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(ejkernel-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT ejkernel NAMESPACE ejkernel:: FILE ejkernel-targets.cmake DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/ejkernel-config.cmake
              ${PROJECT_BINARY_DIR}/ejkernel-config-version.cmake
        DESTINATION ${package_dir})

# The prefix is found from the file's own place, so that an installed tree can be moved and
# `cmake --install --prefix` may differ from the configured one. Whether the loader looks there is known
# when it is installed only.
file(RELATIVE_PATH pc_to_prefix
     ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
set(pc_rpath "@pc_rpath@")
configure_file(cmake/ejkernel.pc.in ejkernel.pc.in @ONLY)
install(CODE [[
  set(pc_rpath "-Wl,-rpath,\${libdir}")
  if(CMAKE_INSTALL_PREFIX MATCHES "^(/usr(/local)?)?/?$")
    set(pc_rpath "")
  endif()]])
install(CODE "configure_file(\"${PROJECT_BINARY_DIR}/ejkernel.pc.in\" \"${PROJECT_BINARY_DIR}/ejkernel.pc\" @ONLY)")
install(FILES ${PROJECT_BINARY_DIR}/ejkernel.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(EXISTS ${PROJECT_SOURCE_DIR}/docs/ejk.1)
  install(FILES docs/ejk.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
