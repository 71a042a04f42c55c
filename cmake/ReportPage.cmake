# hydrant_report_page(<page.html> HEADER <file> VARIABLE <name> SCRIPTS <file>...): a page of HTML that needs nothing else, as a
# C++ string. Where it says /*SCRIPTS*/ come tools/web/charts.js, which all pages share, and the scripts.
# The header lies below generated/ in the build folder.

function(hydrant_report_page page_file)
  cmake_parse_arguments(ARG "" "HEADER;VARIABLE" "SCRIPTS" ${ARGN})
  set(scripts)
  foreach(file ${PROJECT_SOURCE_DIR}/tools/web/charts.js ${ARG_SCRIPTS})
    file(READ ${file} script)
    string(APPEND scripts "${script}")
  endforeach()
  file(READ ${page_file} page)
  string(REPLACE "/*SCRIPTS*/" "${scripts}" page "${page}")
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/generated/${ARG_HEADER}
       "inline constexpr char ${ARG_VARIABLE}[] = R\"page(${page})page\";\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
               ${page_file} ${ARG_SCRIPTS} ${PROJECT_SOURCE_DIR}/tools/web/charts.js)
endfunction()
