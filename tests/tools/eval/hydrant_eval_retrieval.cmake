# The repository's retrieval model works: with the full cache it finds the number of the requested
# line, with the question in the context or after it.
file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${EVAL} --model ${MODEL} --text LICENSE --tasks lines,lines-unseen --cases 20 --length 500
                        --policies local --budgets 0.1 --memory-gb 0.2 --out ${WORK}
                RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE progress)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "ended with ${code}: ${progress}")
endif()
file(READ ${WORK}/results.csv results)
foreach(task lines lines-unseen)
  # Columns: nats lost, their interval, agreement, divergence; then the share found relative to the
  # full cache.
  if(NOT results MATCHES "\n${task},\"local\",0.1,20,[^,]*,[^,]*,[^,]*,[^,]*,([^,]*),([0-9]+),")
    message(FATAL_ERROR "no ${task} in ${results}")
  endif()
  message(STATUS "${task}: ${CMAKE_MATCH_2} of 20 found; ${CMAKE_MATCH_1} of them in a tenth of the cache")
  if(CMAKE_MATCH_2 LESS 19)
    message(FATAL_ERROR "${task}: the full cache finds ${CMAKE_MATCH_2} of 20, less than 95 %")
  endif()
  # If the last tenth were enough, the task would not test the cache.
  if(CMAKE_MATCH_1 GREATER 0.5)
    message(FATAL_ERROR "${task}: the last tenth of the entries finds ${CMAKE_MATCH_1} of them")
  endif()
endforeach()
