# Sends policy_probe a few questions about the tiny model and checks the answers.
#   cmake -D PROBE=... -D WORK=folder -P policy_probe_quick.cmake, from the root of the repository
set(tokens "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20")
set(questions "${WORK}/policy_probe_questions.jsonl")
file(WRITE "${questions}"
  "{\"id\":\"full\",\"tokens\":[${tokens}],\"context\":18,\"generate\":2,\"positions\":true}\n"
  "{\"id\":\"streaming\",\"tokens\":[${tokens}],\"positions\":true,\"cache\":{\"policy\":\"streaming\",\"max_cache_tokens\":6}}\n"
  "{\"id\":\"reconstruct\",\"tokens\":[${tokens}],\"cache\":{\"policy\":\"reconstruct\",\"max_cache_tokens\":6,\"params\":{\"max_weight\":0,\"budget_scope\":\"layer\"}},\"probe\":[5,6]}\n"
  "{\"id\":\"refused\",\"tokens\":[${tokens}],\"cache\":{\"policy\":\"h2o\",\"cache_ratio\":2}}\n"
  "{\"id\":\"text\",\"text\":\"Hello\"}\n")
execute_process(COMMAND "${PROBE}" --model tests/data/engine/tiny_mha --max-tokens 64 --batch 2
                INPUT_FILE "${questions}" OUTPUT_VARIABLE answers RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "policy_probe ended with ${failed}")
endif()
foreach(wanted
        "\"id\":\"full\",\"kept\":\\[\\[\\[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17\\]"
        "\"nll\":[0-9.]+,\"text\":[^\n]*,\"tokens\":\\[[0-9]+,[0-9]+\\]"
        "\"id\":\"streaming\",\"kept\":\\[\\[\\[0,1,2,3,18,19\\]"
        "\"id\":\"reconstruct\",\"retained_mass\":0"
        "\"error\":\"cache.cache_ratio: [^\n]*,\"id\":\"refused\""
        "\"id\":\"text\",\"tokens\":\\[[0-9]")
  if(NOT answers MATCHES "${wanted}")
    message(FATAL_ERROR "no answer matches ${wanted}:\n${answers}")
  endif()
endforeach()
