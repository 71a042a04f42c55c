# hydrant_library(<name> SOURCES ... DEPS ... [PRIVATE_DEPS ...] [OPTIMIZE <level>] [APART ...]): a static library with the project's
# flags. With HYDRANT_QUICK_BUILD several sources form one translation unit, so that their headers are read once. The sources then
# share their unnamed namespaces: list sources whose names collide as APART, and they are compiled alone.
# hydrant_test(<name> SOURCES ... DEPS ...): a GoogleTest program, one ctest entry.
# Includes are always written from the root of the repository ("scheduler/scheduler.h").

function(hydrant_flags target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(${target} PRIVATE -Wall -Wextra)
  if(HYDRANT_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
    # GCC 12 sees overlapping copies in std::string that are not there (GCC bug 105651).
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      target_compile_options(${target} PRIVATE -Wno-restrict)
    endif()
  endif()
  if(HYDRANT_FUZZERS)
    # A fuzzer finds its way by what it reaches in the libraries.
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  if(HYDRANT_SANITIZE)
    # What is undefined ends a test as an error does.
    target_compile_options(${target} PUBLIC -fsanitize=${HYDRANT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${HYDRANT_SANITIZE})
  endif()
endfunction()

# hydrant_optimize(<target> <level>): sets the compiler's -O level in Release builds. Level 3 is for code that computes tokens; for
# other code it makes the build slower and the program no faster.
function(hydrant_optimize target level)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O${level}>)
endfunction()

# hydrant_unity(<target> [<source> ...]): compiles the target's sources several at a time, and the listed sources alone.
function(hydrant_unity target)
  if(NOT HYDRANT_QUICK_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC treats the included sources as headers and warns about their unnamed namespaces.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

function(hydrant_library name)
  cmake_parse_arguments(ARG "" "OPTIMIZE" "SOURCES;DEPS;PRIVATE_DEPS;APART" ${ARGN})
  if(NOT ARG_OPTIMIZE)
    set(ARG_OPTIMIZE 2)
  endif()
  # Shared: what scripts/gpu-check packs has each library once, not once in every test.
  set(kind STATIC)
  if(HYDRANT_SHARED)
    set(kind SHARED)
  endif()
  add_library(${name} ${kind} ${ARG_SOURCES} ${ARG_APART})
  hydrant_flags(${name})
  # Plain x86 code has no fused multiply-add; without it, other machines round as x86 does.
  if(NOT HYDRANT_X86)
    target_compile_options(${name} PRIVATE -ffp-contract=off)
  endif()
  hydrant_optimize(${name} ${ARG_OPTIMIZE})
  hydrant_unity(${name} ${ARG_APART})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON DEFINE_SYMBOL "")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

function(hydrant_executable name)
  cmake_parse_arguments(ARG "" "OPTIMIZE" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_OPTIMIZE)
    set(ARG_OPTIMIZE 2)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  hydrant_flags(${name})
  hydrant_optimize(${name} ${ARG_OPTIMIZE})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  if(HYDRANT_TESTS AND HYDRANT_SANITIZE MATCHES address)
    target_link_libraries(${name} PRIVATE hydrant_leaks_of_libraries)
  endif()
endfunction()

# hydrant_test_headers(<name> HEADERS ... DEPS ...): precompiles the headers that the tests of a folder share. A folder uses them in
# all of its tests by setting HYDRANT_TEST_HEADERS to the name.
function(hydrant_test_headers name)
  if(NOT HYDRANT_QUICK_BUILD)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS" ${ARGN})
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "// There for its headers.\n" @ONLY)
  add_library(${name} OBJECT ${source})
  hydrant_flags(${name})
  hydrant_optimize(${name} 1)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)
endfunction()

function(hydrant_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  hydrant_executable(${name} OPTIMIZE 1 SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  if(TARGET "${HYDRANT_TEST_HEADERS}")
    target_precompile_headers(${name} REUSE_FROM ${HYDRANT_TEST_HEADERS})
    # ccache needs this flag to see which precompiled header a test uses.
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  hydrant_test_timeout(${name} ${ARG_TIMEOUT})
endfunction()

# Seconds without sanitizers and emulation, which are slow.
function(hydrant_test_timeout name seconds)
  if(CMAKE_CROSSCOMPILING)
    math(EXPR seconds "${seconds} * 20")
  endif()
  if(HYDRANT_SANITIZE)
    math(EXPR seconds "${seconds} * 12")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds})
endfunction()

# hydrant_fewer_cases_with_tsan(<test>): ThreadSanitizer runs every eighth case of a test that takes it half an hour. The cases
# differ in shapes, policies and models, not in threads. The cases of a CUDA device, which skip without one, are not counted.
function(hydrant_fewer_cases_with_tsan name)
  if(HYDRANT_SANITIZE MATCHES thread)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_FILTER=-*cuda*;GTEST_TOTAL_SHARDS=8;GTEST_SHARD_INDEX=0")
  endif()
endfunction()

# With clang and HYDRANT_FUZZERS=ON a libFuzzer program; else a test that runs it over its corpus, corpus/<name> beside the
# first source, and changed copies of it (tests/corpus_main.cc).
function(hydrant_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(HYDRANT_FUZZERS)
    hydrant_executable(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    return()
  endif()
  if(HYDRANT_SHARED)  # what is packed for a GPU reads no files but its own
    return()
  endif()
  list(GET ARG_SOURCES 0 first)
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR}/${first} DIRECTORY)
  hydrant_executable(${name} OPTIMIZE 1 SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} hydrant_corpus_main)
  add_test(NAME ${name} COMMAND ${name} ${folder}/corpus/${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  hydrant_test_timeout(${name} 120)
endfunction()

# A Google Benchmark program.
function(hydrant_benchmark name)
  if(NOT HYDRANT_BENCHMARKS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  hydrant_executable(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} benchmark::benchmark_main)
endfunction()
