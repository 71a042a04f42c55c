# hydrant_library(<name> SOURCES ... DEPS ... [PRIVATE_DEPS ...]): a static library with the project's flags.
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

function(hydrant_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  hydrant_flags(${name})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

function(hydrant_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  hydrant_flags(${name})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
endfunction()

function(hydrant_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  hydrant_executable(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  hydrant_test_timeout(${name} ${ARG_TIMEOUT})
endfunction()

# Seconds without sanitizers, which are slow.
function(hydrant_test_timeout name seconds)
  if(HYDRANT_SANITIZE)
    math(EXPR seconds "${seconds} * 5")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds})
endfunction()

# A libFuzzer program; built only with clang and HYDRANT_FUZZERS=ON.
function(hydrant_fuzzer name)
  if(NOT HYDRANT_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  hydrant_executable(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()

# A Google Benchmark program.
function(hydrant_benchmark name)
  if(NOT HYDRANT_BENCHMARKS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  hydrant_executable(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} benchmark::benchmark_main)
endfunction()
