# plimsoll_library(folder SOURCES ... LINKS ... [ISA_<LEVEL> files...]): one static target per folder.
#   LINKS is the list of folders and packages it may include. ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16, ISA_AMX: files built with
#   those instructions; they hold intrinsics only, so that no inline function of the standard library is compiled for them.
# plimsoll_test(folder SOURCES ... [LINKS ...]): one GoogleTest binary and one ctest entry.
# Both compile sources together, many at a time, but for those that ALONE lists, and take the flag TORCH_PCH (any other target
# plimsoll_use_torch_pch, plimsoll_unity): torch's headers precompiled once for all. Other tests have GoogleTest's precompiled. Names of
# unnamed namespaces differ within a folder, therefore; a test whose helpers are called as another's has a namespace of its own name.
find_program(CCACHE ccache)
if(CCACHE)
  # Paths inside the clone count as relative ones, so that another clone finds what this one compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
endif()

# Named instruction sets, never -march=native. No x87, no -ffast-math; contraction off so that every ISA rounds alike.
set(PLIMSOLL_FLAGS_PORTABLE $<$<CONFIG:Release>:-O2>) # for processors that nobody measures
set(PLIMSOLL_FLAGS_AVX2 -mavx2 -mfma -mf16c)
set(PLIMSOLL_FLAGS_AVX512 ${PLIMSOLL_FLAGS_AVX2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC's own AVX-512 headers start from deliberately undefined registers and warn about it (GCC bug 105593).
  list(APPEND PLIMSOLL_FLAGS_AVX512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
set(PLIMSOLL_FLAGS_AVX512_BF16 ${PLIMSOLL_FLAGS_AVX512} -mavx512vbmi -mavx512bf16)
set(PLIMSOLL_FLAGS_AMX ${PLIMSOLL_FLAGS_AVX512_BF16} -mamx-tile -mamx-bf16 -mamx-int8)

# -O2 but for kernels: -O3, which they have, takes longer to compile and gives glue and tests nothing. GCC looks for its own garbage
# from a gigabyte on, not from 128 MB: 8 to 17 % less time for a file that reads torch's headers, for 0.1 GB.
function(plimsoll_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion -ffp-contract=off
                         $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1000000> $<$<BOOL:${PLIMSOLL_WERROR}>:-Werror>)
  if(NOT target MATCHES "^plimsoll_kernels_")
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O2>)
  endif()
endfunction()

# Parsing torch's headers costs 15 s a file; precompiled, 5 s (Zen 3), because GCC instantiates their pending templates anew for each file
# that it compiles: up to 32 sources are therefore compiled as one. One target compiles the headers, with the flags that all users share.
# Sources that need no more of torch than tensors, as those of io and cli, do without.
option(PLIMSOLL_PCH "Precompile headers once" ON)
option(PLIMSOLL_UNITY "Compile sources of one folder together, up to 32 at a time" ON)
set(PLIMSOLL_HEADERS_TORCH <torch/nn/module.h> <torch/library.h> <torch/csrc/autograd/custom_function.h>)

# plimsoll_NAME_pch: `headers` precompiled as position-independent code of the kind `pic` (-fPIC, -fPIE), with what ARGN links.
function(plimsoll_pch name pic headers)
  set(PLIMSOLL_PIC_${name} ${pic} PARENT_SCOPE)
  if(PLIMSOLL_PCH)
    file(CONFIGURE OUTPUT ${name}_pch.cpp CONTENT "// Carries the precompiled headers.\n")
    add_library(plimsoll_${name}_pch OBJECT EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/${name}_pch.cpp)
    plimsoll_options(plimsoll_${name}_pch)
    set_target_properties(plimsoll_${name}_pch PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(plimsoll_${name}_pch PRIVATE ${pic} -fpch-preprocess)
    target_link_libraries(plimsoll_${name}_pch PRIVATE plimsoll_openmp ${ARGN})
    target_precompile_headers(plimsoll_${name}_pch PRIVATE ${headers})
  endif()
endfunction()

plimsoll_pch(torch -fPIC "${PLIMSOLL_HEADERS_TORCH}" plimsoll_torch)
if(PLIMSOLL_TESTS)
  plimsoll_pch(gtest -fPIE "<gmock/gmock.h>;<gtest/gtest.h>" GTest::gtest GTest::gmock)
endif()

# The target's sources, up to 32 as one, but for those with flags of their own or SKIP_UNITY_BUILD_INCLUSION. CMake's UNITY_BUILD
# does the same with absolute paths, by which ccache would tell one clone from another.
function(plimsoll_unity target)
  if(PLIMSOLL_UNITY)
    # Deferred until the folder has said all of its sources; EVAL, since a deferred call would read `target` then.
    cmake_language(EVAL CODE "cmake_language(DEFER CALL plimsoll_join_sources ${target})")
  endif()
endfunction()

function(plimsoll_join_sources target)
  get_target_property(sources ${target} SOURCES)
  set(alone)
  set(together)
  foreach(source IN LISTS sources)
    get_source_file_property(skip ${source} SKIP_UNITY_BUILD_INCLUSION)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if(skip OR options OR source MATCHES "^[$]<")
      list(APPEND alone ${source})
    else()
      list(APPEND together ${source})
    endif()
  endforeach()
  list(LENGTH together count)
  math(EXPR files "(${count} + 31) / 32")
  set(position 0)
  foreach(source IN LISTS together)
    math(EXPR file "${position} * ${files} / ${count}")
    file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    string(APPEND content_${file} "#include \"${path}\"\n")
    math(EXPR position "${position} + 1")
  endforeach()
  foreach(file RANGE ${files})
    if(content_${file})
      file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${target}_${file}.cpp CONTENT "${content_${file}}")
      list(APPEND alone ${CMAKE_CURRENT_BINARY_DIR}/${target}_${file}.cpp)
    endif()
  endforeach()
  set_property(TARGET ${target} PROPERTY SOURCES ${alone})
endfunction()

function(plimsoll_use_pch target name)
  if(PLIMSOLL_PCH)
    # CMake would give executables -fPIE, which does not fit headers precompiled with the libraries' -fPIC. -fpch-preprocess is for ccache.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE ${PLIMSOLL_PIC_${name}} -fpch-preprocess)
    target_link_libraries(${target} PRIVATE plimsoll_openmp)
    target_precompile_headers(${target} REUSE_FROM plimsoll_${name}_pch)
  endif()
endfunction()

function(plimsoll_use_torch_pch target)
  plimsoll_use_pch(${target} torch)
endfunction()

# By the caller's arg_TORCH_PCH and arg_ALONE.
function(plimsoll_sources_of_arguments target)
  plimsoll_unity(${target})
  if(arg_TORCH_PCH)
    plimsoll_use_torch_pch(${target})
  endif()
  if(arg_ALONE)
    set_source_files_properties(${arg_ALONE} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# Files that compile x_loops.inc for each instruction set (kernels/for_isa.h). Sets `files` to their paths.
function(plimsoll_loops files inc)
  get_filename_component(name ${inc} NAME_WE)
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(paths)
  foreach(isa Portable Avx2 Avx512)
    string(TOLOWER ${isa} suffix)
    string(TOUPPER ${isa} level)
    set(path ${CMAKE_CURRENT_BINARY_DIR}/${name}_${suffix}.cpp)
    file(CONFIGURE OUTPUT ${path} CONTENT "#include \"${folder}/${inc}\"\n")
    set_source_files_properties(${path} PROPERTIES COMPILE_DEFINITIONS PLIMSOLL_ISA=${isa} SKIP_PRECOMPILE_HEADERS ON
                                COMPILE_OPTIONS "${PLIMSOLL_FLAGS_${level}}")
    list(APPEND paths ${path})
  endforeach()
  set(${files} ${paths} PARENT_SCOPE)
endfunction()

function(plimsoll_library folder)
  cmake_parse_arguments(arg "TORCH_PCH" "" "SOURCES;LINKS;PRIVATE_LINKS;ALONE;LOOPS;ISA_AVX2;ISA_AVX512;ISA_AVX512_BF16;ISA_AMX" ${ARGN})
  set(target plimsoll_${folder})
  if(arg_LOOPS)
    plimsoll_loops(loops ${arg_LOOPS})
  endif()
  set(isa_files ${loops} ${arg_ISA_AVX2} ${arg_ISA_AVX512} ${arg_ISA_AVX512_BF16} ${arg_ISA_AMX})
  if(arg_SOURCES OR isa_files)
    add_library(${target} STATIC ${arg_SOURCES} ${isa_files})
    set(scope PUBLIC)
    plimsoll_options(${target})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(Plimsoll::${folder} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_link_libraries(${target} ${scope} ${arg_LINKS})
  if(arg_PRIVATE_LINKS)
    target_link_libraries(${target} PRIVATE ${arg_PRIVATE_LINKS})
  endif()
  plimsoll_sources_of_arguments(${target})
  foreach(level AVX2 AVX512 AVX512_BF16 AMX)
    # By their names tools/check_weak_symbols finds the objects.
    foreach(file IN LISTS arg_ISA_${level})
      if(NOT file MATCHES "_(avx2|avx512|avx512_bf16|amx)[.]cpp$")
        message(FATAL_ERROR "${folder}: ISA_${level}: expected a name that ends in _avx2, _avx512, _avx512_bf16 or _amx, got ${file}")
      endif()
    endforeach()
    if(arg_ISA_${level})
      set_source_files_properties(${arg_ISA_${level}} PROPERTIES COMPILE_OPTIONS "${PLIMSOLL_FLAGS_${level}}"
                                  SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY PLIMSOLL_LIBRARIES ${target})
endfunction()

function(plimsoll_test name)
  if(NOT PLIMSOLL_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "TORCH_PCH" "" "SOURCES;ALONE;LINKS" ${ARGN})
  add_executable(${name}_test ${arg_SOURCES})
  plimsoll_options(${name}_test)
  target_link_libraries(${name}_test PRIVATE ${arg_LINKS} GTest::gtest_main GTest::gmock)
  plimsoll_sources_of_arguments(${name}_test)
  if(NOT arg_TORCH_PCH)
    plimsoll_use_pch(${name}_test gtest)
  endif()
  add_test(NAME ${name} COMMAND ${name}_test)
  set_tests_properties(${name} PROPERTIES TIMEOUT 900)
endfunction()

# plimsoll_bench(folder SOURCES ... [LINKS ...]): the folder's part of bin/plimsoll_bench (bench/). The target folder_bench, built only
# when asked for, is a program of this part alone.
function(plimsoll_bench name)
  if(NOT PLIMSOLL_BENCH)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;LINKS" ${ARGN})
  add_library(${name}_bench_objects OBJECT EXCLUDE_FROM_ALL ${arg_SOURCES})
  plimsoll_options(${name}_bench_objects)
  target_link_libraries(${name}_bench_objects PUBLIC ${arg_LINKS} benchmark::benchmark)
  set_property(GLOBAL APPEND PROPERTY PLIMSOLL_BENCHES ${name}_bench_objects)
  add_executable(${name}_bench EXCLUDE_FROM_ALL)
  target_link_libraries(${name}_bench PRIVATE ${name}_bench_objects benchmark::benchmark_main)
endfunction()
