# The repository's retrieval model does what it is for: with the full cache it finds the number of the line asked for,
# whether the question stands in the context or comes afterwards.
file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${EVAL} --model ${MODEL} --text LICENSE --tasks lines,lines-unseen --cases 20 --length 500
                        --policies local --budgets 0.1 --memory-gb 0.2 --out ${WORK}
                RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE progress)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "ended with ${code}: ${progress}")
endif()
file(READ ${WORK}/results.csv results)
foreach(task lines lines-unseen)
  # nats lost, their interval, agreement and divergence stand between; then the share found of what the full cache finds.
  if(NOT results MATCHES "\n${task},\"local\",0.1,20,[^,]*,[^,]*,[^,]*,[^,]*,([^,]*),([0-9]+),")
    message(FATAL_ERROR "no ${task} in ${results}")
  endif()
  message(STATUS "${task}: ${CMAKE_MATCH_2} of 20 found; ${CMAKE_MATCH_1} of them in a tenth of the cache")
  if(CMAKE_MATCH_2 LESS 19)
    message(FATAL_ERROR "${task}: the full cache finds ${CMAKE_MATCH_2} of 20, less than 95 %")
  endif()
  # Were the last tenth enough, the task would ask nothing of the cache.
  if(CMAKE_MATCH_1 GREATER 0.5)
    message(FATAL_ERROR "${task}: the last tenth of the entries finds ${CMAKE_MATCH_1} of them")
  endif()
endforeach()
