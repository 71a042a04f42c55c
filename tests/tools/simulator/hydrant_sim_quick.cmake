# hydrant-sim as a user runs it: a table and figures, replicas, a fit, and refusals that name the
# fault.
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})

execute_process(COMMAND ${SIM} --num-prompts 200 --request-rate 1 --input-len 100 --output-len 20 --goodput "ttft:1000 tpot:100"
                        --mix full@1,h2o:cache_ratio=0.2@1 --json ${WORK}/run.json
                RESULT_VARIABLE code OUTPUT_VARIABLE table ERROR_VARIABLE said)
if(NOT code EQUAL 0 OR NOT table MATCHES "200 requests, 200 completed" OR NOT table MATCHES "TTFT" OR NOT table MATCHES "h2o:cache_ratio=0.2\n")
  message(FATAL_ERROR "a run ended with ${code}: ${said}${table}")
endif()
file(READ ${WORK}/run.json figures)
string(JSON completed GET ${figures} completed)
string(JSON windows TYPE ${figures} timeline windows)
if(NOT completed EQUAL 200 OR NOT windows STREQUAL ARRAY)
  message(FATAL_ERROR "run.json: ${completed} completed, windows are ${windows}")
endif()

execute_process(COMMAND ${SIM} --trace tests/data/simulator/mooncake.jsonl --trace-copies 20 --replicas 4 --balancer prefix-aware
                        --request-rate 10 --fold-heads --costs tools/simulator/costs/h100-llama-3.1-8b.json
                RESULT_VARIABLE code OUTPUT_VARIABLE table ERROR_VARIABLE said)
if(NOT code EQUAL 0 OR NOT table MATCHES "60 requests, 60 completed")
  message(FATAL_ERROR "a trace ended with ${code}: ${said}${table}")
endif()

# Steps of 1000 us and 10 us per prompt token.
set(steps "[{}")
foreach(tokens RANGE 10 60)
  math(EXPR us "1000 + 10 * ${tokens}")
  string(APPEND steps ",\n{\"ph\":\"X\",\"ts\":0,\"dur\":${us},\"args\":{\"decoding\":0,\"pages\":0,\"prompt_tokens\":${tokens},\"prompt_pairs\":0}}")
endforeach()
file(WRITE ${WORK}/steps.json "${steps}\n]\n")
execute_process(COMMAND ${SIM} fit ${WORK}/steps.json --json ${WORK}/costs.json RESULT_VARIABLE code ERROR_VARIABLE said)
file(READ ${WORK}/costs.json costs)
string(JSON step GET ${costs} step_us)
if(NOT code EQUAL 0 OR NOT said MATCHES "fitted to 51 steps" OR step LESS 999 OR step GREATER 1001)
  message(FATAL_ERROR "fit ended with ${code}: ${said}, ${costs}")
endif()

function(expect_refused pattern)
  execute_process(COMMAND ${SIM} ${ARGN} RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE said)
  if(NOT code EQUAL 2 OR NOT said MATCHES "${pattern}")
    message(FATAL_ERROR "${ARGN}: code ${code}, said '${said}'")
  endif()
endfunction()
expect_refused("--balancer" --balancer best)
expect_refused("max_num_seqs: 0 is outside" --max-num-seqs 0)
expect_refused("request-rate: 'fast' is no rate" --request-rate fast)
expect_refused("policy-under-pressure: cache.cache_policy: 'h3o' is unknown" --policy-under-pressure h3o:cache_ratio=0.2)
expect_refused("mix: ':': it begins with the name of a policy" --mix ":")
expect_refused("mix: 'h20': cache.cache_policy: 'h20' is unknown; one of full" --mix full,h20)
expect_refused("mix: 'h2o:x=1': cache.params: 'x' is no parameter of policy h2o" --mix h2o:x=1)
expect_refused("replicas: 0 is outside" --replicas 0)
expect_refused("num-prompts: 0 is outside" --num-prompts 0)
expect_refused("goodput: 'x' is no objective" --goodput x)
expect_refused("too few to fit by" fit tests/data/simulator/mooncake.jsonl)
expect_refused("json: /nowhere/run.json: cannot be written" --json /nowhere/run.json)
expect_refused("num-prompts: 99999999999 is more than" --num-prompts 99999999999)

# If output cannot be written, or no request was completed, the exit status is 1.
function(expect_failed pattern output)
  execute_process(COMMAND ${SIM} ${ARGN} RESULT_VARIABLE code OUTPUT_FILE ${output} ERROR_VARIABLE said)
  if(NOT code EQUAL 1 OR NOT said MATCHES "${pattern}")
    message(FATAL_ERROR "${ARGN} >${output}: code ${code}, said '${said}'")
  endif()
endfunction()
expect_failed("hydrant-sim: standard output: cannot be written: No space left on device" /dev/full --num-prompts 5 --request-rate 100)
expect_failed("no request was completed" ${WORK}/none.txt --num-prompts 5 --request-rate 100 --input-len 9000)
