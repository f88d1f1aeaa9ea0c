# SPDX-License-Identifier: Apache-2.0
# The list of kernels. Each operation's folder has a file kernels.list; its lines are, fields separated by '|':
#
#   operation <name>
#       the description `ejk_<name>_kernel` belongs to the library
#   kernel <operation> | <kernel or -> | <tiers> | <element types> | <source> [| <limits>]
#       one implementation for each tier and each element type. A tier is one of EJK_ISAS or `scalar`, `reference`
#       or `cuda`. Up to four types joined by commas, as bf16,f8e4m3,f32, are those of the first tensor and of the
#       ones that ejk_kernel.further_types names. The source is relative to the list. A header
#       (*_body.h) is compiled once for each tier, by a file that is generated; a C file is compiled as it is and
#       declares its own line. Limits of cuda: the least, or the least and the most compute capability: `sm_80`,
#       `sm_90 sm_90`.
#   alias <operation> | <operation> | <kernels>
#       the kernels of the second operation are registered for the first, too
#   compile <text> | <constants or -> | <bytes> <bytes>
#       a CUDA text and constants as launchers give them, and how many bytes a thread may spill on sm_80 and on sm_90a;
#       -: not for it. Each text needs one such line. A test holds NVRTC 13 to them; raise a limit only with a
#       measurement that says why.
#
# From these come kernel_lines.h, which kernels/declare.h expands; builtin.c, what the registry adds; operations.inc,
# what a context knows; compile_lines.inc, what test_cuda_compile does; and the sources of each tier with the flags of
# that tier. Nothing else lists kernels.

set(EJK_PLATFORM_TIERS reference cuda)

# How a line's kernels are called: <operation>_<kernel>_<tier>, without `-`.
function(ejk_line_name out operation kernel tier)
  string(JOIN _ name ${operation} ${kernel} ${tier})
  string(REPLACE "_-_" "_" name ${name})
  set(${out} ${name} PARENT_SCOPE)
endfunction()

# ejk_kernel_line(<list> <operation> <kernel> <tiers> <types> <source> <limits>): adds to lines, symbols, sources.
function(ejk_kernel_line list operation kernel tiers types source limits)
  cmake_path(GET list PARENT_PATH folder)
  cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} NORMALIZE OUTPUT_VARIABLE path)
  if(NOT EXISTS ${path})
    message(FATAL_ERROR "${list}: ${source} does not exist")
  endif()
  cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/src OUTPUT_VARIABLE include)
  string(REPLACE "sm_" "" limits "${limits}")
  list(APPEND limits 0 0)
  list(GET limits 0 least)
  list(GET limits 1 most)
  if(kernel STREQUAL -)
    set(suffix "")
  else()
    set(suffix "/${kernel}")
  endif()
  foreach(tier IN LISTS tiers)
    if(NOT tier IN_LIST EJK_ISAS AND NOT tier STREQUAL scalar AND NOT tier IN_LIST EJK_PLATFORM_TIERS)
      continue()
    endif()
    string(TOUPPER ${tier} upper)
    set(platform SIMD)
    set(backend CPU)
    set(isa SCALAR)
    if(tier STREQUAL reference)
      set(platform REFERENCE)
      set(backend ANY)
    elseif(tier STREQUAL cuda)
      set(platform CUDA)
      set(backend GPU)
    else()
      set(isa ${upper})
    endif()
    ejk_line_name(name ${operation} ${kernel} ${tier})
    string(REGEX REPLACE "^${operation}" "" behind ${name})
    set(line "")
    get_property(others GLOBAL PROPERTY EJK_ALIASES_OF_${operation}_${kernel})
    foreach(type IN LISTS types)
      string(TOUPPER "${type},UNSET,UNSET,UNSET" dtypes)
      string(REPLACE "," ";" dtypes "${dtypes}")
      list(SUBLIST dtypes 0 4 dtypes)
      list(TRANSFORM dtypes PREPEND "EJK_DTYPE_")
      list(JOIN dtypes ", " dtypes)
      foreach(registered ${operation} ${others})
        string(REPLACE "," "_" symbol "ejki_${registered}_${type}_${tier}_${kernel}")
        string(REPLACE "_-" "" symbol ${symbol})
        string(APPEND line " \\\n    X(${symbol}, \"${registered}\", "
                           "\"${type}/\" EJKI_TIER_TEXT_${tier} \"${suffix}\", "
                           "${platform}, ${backend}, ${isa}, ${dtypes}, ${least}, ${most}, __VA_ARGS__)")
        set_property(GLOBAL APPEND PROPERTY EJK_SYMBOLS ${symbol})
      endforeach()
    endforeach()
    set_property(GLOBAL APPEND_STRING PROPERTY EJK_LINES "#define EJKI_LINE_${name}(X, ...)${line}\n")
    if(include MATCHES "\\.h$")
      set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated/${name}.c)
      file(CONFIGURE OUTPUT ${generated} CONTENT "/* Generated from a line of kernels.list. */
#define EJKI_THIS_LINE ${name}
#define EJKI_LINE_OF(operation) operation##${behind}
#define EJKI_TIER_${upper}
#define EJKI_TIER ${tier}
#include \"${include}\"
" @ONLY)
    else()
      set(generated ${path})
    endif()
    set_property(GLOBAL APPEND PROPERTY EJK_SOURCES_${tier} ${generated})
  endforeach()
endfunction()

# Sets `lines` to those of a list, without comments.
macro(ejk_list_lines list)
  file(STRINGS ${list} lines)
  list(FILTER lines EXCLUDE REGEX "^ *(#.*)?$")
endmacro()

# The aliases come first, since a kernel's line is expanded for each of its operations.
function(ejk_read_aliases list)
  ejk_list_lines(${list})
  foreach(line IN LISTS lines)
    if(line MATCHES "^alias +([a-z0-9_]+) *\\| *([a-z0-9_]+) *\\| *([-a-z0-9_ ]+)$")
      set(own ${CMAKE_MATCH_1})
      set(operation ${CMAKE_MATCH_2})
      string(REGEX REPLACE " +" ";" kernels "${CMAKE_MATCH_3}")
      foreach(kernel IN LISTS kernels)
        set_property(GLOBAL APPEND PROPERTY EJK_ALIASES_OF_${operation}_${kernel} ${own})
      endforeach()
    endif()
  endforeach()
endfunction()

# ejk_compile_line(<list> <text> <constants> <bytes>)
function(ejk_compile_line list text constants bytes)
  cmake_path(GET list PARENT_PATH folder)
  cmake_path(ABSOLUTE_PATH text BASE_DIRECTORY ${folder} NORMALIZE OUTPUT_VARIABLE path)
  if(NOT EXISTS ${path} OR NOT bytes MATCHES "^([0-9]+|-) +([0-9]+|-)$")
    message(FATAL_ERROR "${list}: 'compile ${text} | ${constants} | ${bytes}' names no file, or no two numbers")
  endif()
  set(least ${CMAKE_MATCH_1})
  set(most ${CMAKE_MATCH_2})
  foreach(number least most)
    string(REGEX REPLACE "^-$" "-1" ${number} ${${number}})
  endforeach()
  string(REGEX REPLACE "^-$" "" constants "${constants}")
  cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/src OUTPUT_VARIABLE text)
  set_property(GLOBAL APPEND PROPERTY EJK_COMPILED_TEXTS ${text})
  set_property(GLOBAL APPEND_STRING PROPERTY EJK_COMPILE_LINES
               "{\"${text}\", \"${constants}\", {${least}, ${most}}},\n")
endfunction()

function(ejk_read_kernels list)
  ejk_list_lines(${list})
  foreach(line IN LISTS lines)
    if(line MATCHES "^operation +([a-z0-9_]+)$")
      set_property(GLOBAL APPEND PROPERTY EJK_OPERATIONS ${CMAKE_MATCH_1})
    elseif(line MATCHES "^kernel +(.*)$")
      string(REGEX REPLACE " *\\| *" ";" fields "${CMAKE_MATCH_1};")
      list(POP_FRONT fields operation kernel tiers types source limits)
      foreach(split tiers types limits)
        string(REGEX REPLACE " +" ";" ${split} "${${split}}")
      endforeach()
      ejk_kernel_line(${list} ${operation} ${kernel} "${tiers}" "${types}" ${source} "${limits}")
    elseif(line MATCHES "^compile +([^ |]+) *\\| *([^|]*[^ |]) *\\| *(.*[^ ]) *$")
      ejk_compile_line(${list} ${CMAKE_MATCH_1} "${CMAKE_MATCH_2}" "${CMAKE_MATCH_3}")
    elseif(NOT line MATCHES "^alias ")
      message(FATAL_ERROR "${list}: '${line}' is no line of a list of kernels")
    endif()
  endforeach()
endfunction()

# ejk_read_kernel_lists(<folder>): reads every list beneath it and writes what is generated from them.
function(ejk_read_kernel_lists folder)
  file(GLOB_RECURSE lists CONFIGURE_DEPENDS ${folder}/kernels.list)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${lists})
  foreach(list IN LISTS lists)
    ejk_read_aliases(${list})
  endforeach()
  foreach(list IN LISTS lists)
    ejk_read_kernels(${list})
  endforeach()
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)
  set(texts "")
  foreach(tier scalar ${EJK_PLATFORM_TIERS} ${EJK_ISAS})
    string(APPEND texts "#ifndef EJKI_TIER_TEXT_${tier}\n#define EJKI_TIER_TEXT_${tier} \"${tier}\"\n#endif\n")
  endforeach()
  get_property(lines GLOBAL PROPERTY EJK_LINES)
  file(CONFIGURE OUTPUT ${generated}/kernel_lines.h
       CONTENT "/* Generated from the lists of kernels. */\n${texts}${lines}" @ONLY)

  file(GLOB_RECURSE texts RELATIVE ${PROJECT_SOURCE_DIR}/src CONFIGURE_DEPENDS ${folder}/*.cu)
  get_property(compiled GLOBAL PROPERTY EJK_COMPILED_TEXTS)
  list(REMOVE_ITEM texts ${compiled})
  if(texts)
    message(FATAL_ERROR "No `compile` line of a list of kernels names ${texts}")
  endif()
  get_property(lines GLOBAL PROPERTY EJK_COMPILE_LINES)
  file(CONFIGURE OUTPUT ${generated}/compile_lines.inc
       CONTENT "/* Generated from the lists of kernels. */\n${lines}" @ONLY)

  get_property(symbols GLOBAL PROPERTY EJK_SYMBOLS)
  set(externs "")
  set(entries "")
  foreach(symbol IN LISTS symbols)
    string(APPEND externs "extern const ejk_implementation ${symbol};\n")
    string(APPEND entries "    &${symbol},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${generated}/builtin.c CONTENT
"/* Generated from the lists of kernels. */
#include \"kernels/registry/builtin.h\"

${externs}
const ejk_implementation *const ejki_builtin_implementations[] = {
${entries}};

const int32_t ejki_builtin_implementation_count =
    (int32_t)(sizeof ejki_builtin_implementations / sizeof *ejki_builtin_implementations);
" @ONLY)
  get_property(operations GLOBAL PROPERTY EJK_OPERATIONS)
  list(SORT operations)
  list(TRANSFORM operations REPLACE "(.+)" "EJKI_OPERATION(\\1)\n")
  list(JOIN operations "" operations)
  file(CONFIGURE OUTPUT ${generated}/operations.inc
       CONTENT "/* Generated from the lists of kernels. */\n${operations}" @ONLY)
endfunction()
