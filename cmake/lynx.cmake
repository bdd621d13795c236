# SPDX-License-Identifier: Apache-2.0
# lynx_module(name [DIR dir] SRC … DEPS …): a static library; SRC names files of src/<name> (or DIR)
# without .cc.
# lynx_test(name [DIR dir] DEPS … [LABELS …]): one GoogleTest program from every _test.cc below
# tests/<name> (or tests/<dir>).

add_library(lynx_options INTERFACE)
target_include_directories(lynx_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
                                                  ${PROJECT_SOURCE_DIR})
# No contraction anywhere: every fused multiply-add of a kernel is written out (docs/numerics.md).
target_compile_options(lynx_options INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers
                                              -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # False alarms of GCC 12 inside std::string and std::variant at -O3.
  target_compile_options(lynx_options INTERFACE -Wno-restrict -Wno-maybe-uninitialized
                                                -Wno-stringop-overflow)
endif()
target_compile_definitions(lynx_options INTERFACE LYNX_VERSION="${PROJECT_VERSION}")
if(LYNX_SANITIZE)
  target_compile_options(lynx_options INTERFACE -fsanitize=${LYNX_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(lynx_options INTERFACE -fsanitize=${LYNX_SANITIZE})
  if(LYNX_SANITIZE MATCHES thread)
    target_compile_options(lynx_options INTERFACE -Wno-tsan)  # Asio's fences
    target_compile_definitions(lynx_options INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
endif()

find_program(LYNX_CCACHE ccache)
if(LYNX_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${LYNX_CCACHE})
endif()
find_program(LYNX_MOLD mold)
if(LYNX_MOLD)
  target_link_options(lynx_options INTERFACE -fuse-ld=mold)
endif()

# Module names become targets lynx_<name>; anything else is taken as it is.
function(lynx_resolve out)
  set(result "")
  foreach(dep ${ARGN})
    if(TARGET lynx_${dep})
      list(APPEND result lynx_${dep})
    else()
      list(APPEND result ${dep})
    endif()
  endforeach()
  set(${out} ${result} PARENT_SCOPE)
endfunction()

function(lynx_module name)
  cmake_parse_arguments(arg "" "DIR" "SRC;DEPS" ${ARGN})
  if(NOT arg_DIR)
    set(arg_DIR src/${name})
  endif()
  list(TRANSFORM arg_SRC PREPEND ${arg_DIR}/)
  list(TRANSFORM arg_SRC APPEND .cc)
  lynx_resolve(deps ${arg_DEPS})
  add_library(lynx_${name} STATIC ${arg_SRC})
  target_link_libraries(lynx_${name} PUBLIC ${deps} lynx_options)
endfunction()

function(lynx_test name)
  cmake_parse_arguments(arg "" "DIR" "DEPS;LABELS" ${ARGN})
  if(NOT arg_DIR)
    set(arg_DIR ${name})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${arg_DIR}/*_test.cc)
  if(NOT sources)
    return()
  endif()
  string(REPLACE "/" "_" target ${name})
  lynx_resolve(deps ${arg_DEPS})
  add_executable(${target}_test ${sources})
  target_link_libraries(${target}_test PRIVATE ${deps} lynx_options GTest::gmock GTest::gtest_main)
  target_compile_options(${target}_test PRIVATE $<$<CONFIG:Release>:-O1>)  # quicker to compile
  target_compile_definitions(${target}_test PRIVATE
    LYNX_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LYNX_SHARED_DIR="${PROJECT_SOURCE_DIR}/../shared")
  add_test(NAME ${name} COMMAND ${target}_test)
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  set(timeout 600)
  if(LYNX_SANITIZE)
    set(timeout 3600)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${timeout})
  if(LYNX_SANITIZE MATCHES address)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT
      "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp")
  endif()
  if(LYNX_SANITIZE MATCHES thread)  # UCX's memory hooks crash when a thread starts under TSan
    set_tests_properties(${name} PROPERTIES ENVIRONMENT
      "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp;UCX_MEM_EVENTS=no;UCX_MEM_MMAP_HOOK_MODE=none")
  endif()
endfunction()

function(lynx_bench name)
  cmake_parse_arguments(arg "" "" "DEPS" ${ARGN})
  if(NOT EXISTS ${PROJECT_SOURCE_DIR}/bench/${name}_bench.cc)
    return()
  endif()
  lynx_resolve(deps ${arg_DEPS})
  add_executable(${name}_bench ${PROJECT_SOURCE_DIR}/bench/${name}_bench.cc)
  target_link_libraries(${name}_bench PRIVATE ${deps} lynx_options)
endfunction()
