# XGrammar out of .cache/xgrammar, where scripts/fetch-xgrammar has put its sources, as the static library `xgrammar`. Its
# own CMakeLists.txt wants the Python package's build; this one takes the C++ alone.
#
#   HYDRANT_XGRAMMAR  AUTO: where the sources are; ON: end where they are not; OFF: without structured output

set(HYDRANT_XGRAMMAR AUTO CACHE STRING "Structured output through XGrammar: AUTO, ON or OFF")
set(HYDRANT_XGRAMMAR_SOURCE ${PROJECT_SOURCE_DIR}/.cache/xgrammar/0.2.8 CACHE PATH "The sources of XGrammar")

if(NOT HYDRANT_XGRAMMAR)
  message(STATUS "HYDRANT_XGRAMMAR is off: no structured output")
  return()
endif()
if(NOT EXISTS ${HYDRANT_XGRAMMAR_SOURCE}/LICENSE)
  if(HYDRANT_XGRAMMAR STREQUAL "AUTO")
    message(STATUS "No sources of XGrammar (scripts/fetch-xgrammar): no structured output")
    return()
  endif()
  message(FATAL_ERROR "HYDRANT_XGRAMMAR is on, but there is no ${HYDRANT_XGRAMMAR_SOURCE}: run scripts/fetch-xgrammar")
endif()

# hydrant_change_xgrammar(<file> <from> <to> [<from> <to>]...): a copy of one of its files with lines changed, and a note of
# it, as the licence asks.
set(xgrammar_changed)
function(hydrant_change_xgrammar file)
  file(READ ${HYDRANT_XGRAMMAR_SOURCE}/cpp/${file} text)
  math(EXPR last "${ARGC} - 1")
  foreach(i RANGE 1 ${last} 2)
    math(EXPR next "${i} + 1")
    string(REPLACE "${ARGV${i}}" "${ARGV${next}}" changed "${text}")
    if(changed STREQUAL text)
      message(FATAL_ERROR "${HYDRANT_XGRAMMAR_SOURCE}/cpp/${file} is not the one of version 0.2.8: no '${ARGV${i}}'")
    endif()
    set(text "${changed}")
  endforeach()
  file(CONFIGURE OUTPUT xgrammar/${file} @ONLY CONTENT "// Changed by Hydrant; cmake/Xgrammar.cmake says what.\n${text}")
  set(xgrammar_changed ${xgrammar_changed} ${file} PARENT_SCOPE)
endfunction()

# A token counts as the beginning of the next where that contains it anywhere, so tokens that may follow are left out.
hydrant_change_xgrammar(tokenizer_info.cc
  "token.find(prefix_stack.top().first) == std::string::npos" "token.rfind(prefix_stack.top().first, 0) != 0")

# A loop without a check, so without a step (engine/text/grammar/xgrammar_logging.h).
set(line "const auto& parent_states_map = rule_id_to_completable_states_[state.rule_start_pos];")
hydrant_change_xgrammar(earley_parser.cc "${line}" "${line}\n  ::hydrant::SpendGrammarSteps(parent_states_map.size() / 16);")

# A string with a length admits control characters, which JSON does not. A pattern that wants what a JSON string has to
# escape is followed as if it stood outside of one. For arrays and objects without a schema the library writes ", " even if
# the requested separators have no blank.
set(line "  // Keep regex conversion independent.")
hydrant_change_xgrammar(json_schema_converter.cc
  [[{{'"', '"'}, {'\\', '\\'}, {'\r', '\r'}, {'\n', '\n'}}]] [[{{0, 31}, {'"', '"'}, {'\\', '\\'}}]]
  [[any_whitespace_ ? "," : ", ",]] [[",",]]
  "${line}"
  "  if (json_string && !force_cfg_expansion) {
    XGRAMMAR_LOG(FATAL) << \"is too complex: \" << regex;
  }
${line}")

# {0,255} of a character becomes 128 states with a mask each before it becomes a counter, which takes seconds of a vocabulary of
# 150,000. A shorter run does as well: longer tokens are then tried where they may follow.
# Patterns of schemas: merging of states that are not the same admits more, (([0-9]){1,16}|([0-9]|(ab|[a1]))) then a1. A
# deterministic automaton needs none.
hydrant_change_xgrammar(grammar_functor.cc "kUnzipThreshold = 128" "kUnzipThreshold = 16"
  "  auto result = std::move(build_result).Unwrap();
  result = result.SimplifyEpsilon();
  result = result.MergeEquivalentStates();
  return ResultOk(std::move(result));"
  "  return std::move(build_result).Unwrap().ToDFA(20000);")
# Another loop without a step; it looks sets up.
set(line "      if (state_set->find(edge.target) != state_set->end()) {")
# In patterns of schemas, nothing may be skipped to where the text may end and go on as well: (a{2,4})? then admits one a.
hydrant_change_xgrammar(fsm.cc
  "${line}" "      ::hydrant::SpendGrammarSteps(10);\n${line}"
  "  if (!ends_.empty()) {
    fsm.AddEpsilonEdge(start_, ends_.front());
  }
  return FSMWithStartEnd(fsm, start_, ends_);"
  "  const int start = fsm.AddState();
  fsm.AddEpsilonEdge(start, start_);
  FSMWithStartEnd result(fsm, start, ends_);
  result.AddEndState(start);
  return result;")
# The counters of patterns in schemas admit tokens that go on behind the last round in a way that may not follow. Without:
hydrant_change_xgrammar(fsm_builder.cc "kLargeRepeatThreshold = 128" "kLargeRepeatThreshold = 1000000000")

file(GLOB_RECURSE xgrammar_sources RELATIVE ${HYDRANT_XGRAMMAR_SOURCE}/cpp ${HYDRANT_XGRAMMAR_SOURCE}/cpp/*.cc)
list(REMOVE_ITEM xgrammar_sources support/logging.cc ${xgrammar_changed})
list(TRANSFORM xgrammar_sources PREPEND ${HYDRANT_XGRAMMAR_SOURCE}/cpp/)
list(TRANSFORM xgrammar_changed PREPEND ${CMAKE_CURRENT_BINARY_DIR}/xgrammar/)
add_library(xgrammar STATIC ${xgrammar_sources} ${xgrammar_changed})
target_include_directories(xgrammar SYSTEM
  PUBLIC ${HYDRANT_XGRAMMAR_SOURCE}/include ${HYDRANT_XGRAMMAR_SOURCE}/3rdparty/dlpack/include
  PRIVATE ${HYDRANT_XGRAMMAR_SOURCE}/3rdparty/picojson ${HYDRANT_XGRAMMAR_SOURCE}/cpp)
target_compile_definitions(xgrammar PUBLIC XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=1)
# Compiled alone: another source of the library defines constants of the same names.
hydrant_unity(xgrammar ${CMAKE_CURRENT_BINARY_DIR}/xgrammar/json_schema_converter.cc)
# Its header's guard keeps the library's own from being read; that one says why.
target_compile_options(xgrammar PRIVATE -w -include ${PROJECT_SOURCE_DIR}/engine/text/grammar/xgrammar_logging.h)
target_compile_features(xgrammar PRIVATE cxx_std_17)
set_target_properties(xgrammar PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_STANDARD 17 CXX_CLANG_TIDY "")
if(HYDRANT_FUZZERS)
  target_compile_options(xgrammar PRIVATE -fsanitize=fuzzer-no-link)
endif()
if(HYDRANT_SANITIZE)
  # Without checks for undefined behaviour: GCC 12 takes twenty times as long to compile these sources with them, half an hour each.
  string(REPLACE ",undefined" "" sanitize "${HYDRANT_SANITIZE}")
  target_compile_options(xgrammar PRIVATE -fsanitize=${sanitize} -fno-omit-frame-pointer)
  target_link_options(xgrammar PUBLIC -fsanitize=${HYDRANT_SANITIZE})
endif()
