# SPDX-License-Identifier: Apache-2.0
# The CUDA back-end, where there is an nvcc. Without one everything else builds the same.
# lynx_cuda_module(name DIR dir SRC … DEPS …): like lynx_module; SRC names .cu files.
# lynx_cuda_library(name …): the same as liblynx_<name>.so beside the program, which opens it.
include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
check_language(CUDA)
if(CMAKE_CUDA_COMPILER AND NOT LYNX_SANITIZE)
  set(lynx_have_nvcc ON)
else()
  set(lynx_have_nvcc OFF)
endif()
option(LYNX_CUDA "Build the CUDA back-end" ${lynx_have_nvcc})
if(LYNX_CUDA)
  # 8.x runs the code of 8.0, 10.x that of 10.0; 100 embeds PTX too, for whatever comes later.
  set(LYNX_CUDA_ARCHITECTURES 80-real 90-real 100 CACHE STRING "Architectures to compile for")
  set(CMAKE_CUDA_ARCHITECTURES ${LYNX_CUDA_ARCHITECTURES})
  enable_language(CUDA)
  # CMake 3.25 does not know yet that nvcc 12 and later have C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  find_package(CUDAToolkit REQUIRED)
  # Tensor parallelism. Only the header: the library is loaded when it is wanted.
  find_path(LYNX_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(LYNX_NCCL_INCLUDE)
    set(lynx_nccl nccl_collective)
  else()
    set(lynx_nccl nccl_missing)
  endif()
endif()

function(lynx_cuda_module name)
  cmake_parse_arguments(arg "" "DIR" "SRC;DEPS" ${ARGN})
  list(TRANSFORM arg_SRC PREPEND ${arg_DIR}/)
  list(TRANSFORM arg_SRC APPEND .cu)
  # The emulation compiles the same files (tests/simt).
  set_property(GLOBAL PROPERTY lynx_${name}_SOURCES ${arg_SRC})
  set_property(GLOBAL PROPERTY lynx_${name}_DEPS ${arg_DEPS})
  if(NOT LYNX_CUDA)
    return()
  endif()
  lynx_resolve(deps ${arg_DEPS})
  list(TRANSFORM deps REPLACE "^(lynx_.+)" "$<LINK_ONLY:\\1>")  # not the options for g++
  add_library(lynx_${name} STATIC ${arg_SRC})
  target_include_directories(lynx_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
  # No contraction: every fused multiply-add of a kernel is written out (docs/numerics.md).
  target_compile_options(lynx_${name} PRIVATE
    -fmad=false -ftz=true -prec-div=true -prec-sqrt=true --expt-relaxed-constexpr -Werror=all-warnings -Xptxas=-v
    -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-Wno-unused-parameter,-ffp-contract=off)
  target_link_libraries(lynx_${name} PUBLIC ${deps})
  # What ptxas says of each kernel is kept: tools/check_cuda_resources.py reads it.
  set_target_properties(lynx_${name} PROPERTIES CUDA_COMPILER_LAUNCHER
                        "${PROJECT_SOURCE_DIR}/cmake/keep_output;${LYNX_CCACHE}")
endfunction()

function(lynx_cuda_library name)
  if(NOT LYNX_CUDA)
    return()
  endif()
  cmake_parse_arguments(arg "" "DIR" "SRC;DEPS" ${ARGN})
  list(TRANSFORM arg_SRC PREPEND ${arg_DIR}/)
  list(TRANSFORM arg_SRC APPEND .cu)
  lynx_resolve(deps ${arg_DEPS})
  list(TRANSFORM deps REPLACE "(.+)" "$<LINK_ONLY:\\1>")  # not the options for g++
  add_library(lynx_${name} MODULE ${arg_SRC})
  target_include_directories(lynx_${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}
                                                  ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(lynx_${name} PRIVATE ${deps})
  target_link_options(lynx_${name} PRIVATE -Wl,--exclude-libs,ALL -Wl,-z,defs)
endfunction()
