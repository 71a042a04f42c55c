# hydrant-eval fit as a user: a predictor beside a model, which policies find; and refusals.
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
file(COPY ${MODEL} DESTINATION ${WORK})
cmake_path(GET MODEL FILENAME name)
set(model ${WORK}/${name})
set(texts --text docs/guide/policies.md --text LICENSE)
set(pages ${texts} --pages 16 --page-tokens 64)
set(compare --model ${model} --text LICENSE --tasks perplexity --length 96 --given 16 --cases 2 --budgets 0.3)

function(expect_refusal pattern)
  execute_process(COMMAND ${EVAL} ${ARGN} RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE said)
  if(code EQUAL 0 OR NOT said MATCHES "${pattern}")
    message(FATAL_ERROR "${ARGN}: code ${code}, said '${said}' instead of '${pattern}'")
  endif()
endfunction()
expect_refusal("--policies: learned: the model has no score predictor; make one with hydrant-eval fit"
               ${compare} --policies learned --out ${WORK}/none)
expect_refusal("--text: text 1 has [0-9]+ tokens, too few" fit --model ${model} ${texts} --page-tokens 4000)
expect_refusal("--page-tokens: a page is read twice, in [0-9]+ tokens with an instruction; the model's context has"
               fit --model ${model} --text docs/guide/policies.md --pages 8 --page-tokens 1100)
expect_refusal("--pages" fit --model ${model} ${texts} --pages 3)
expect_refusal("--text: cannot read no/such/text" fit --model ${model} --text no/such/text)
expect_refusal("--model" fit --text LICENSE)
expect_refusal("--out: '/no/such/folder/x': cannot be written"
               fit --model ${model} ${pages} --force --out /no/such/folder/x)

execute_process(COMMAND ${EVAL} fit --model ${model} ${pages} --force
                RESULT_VARIABLE code OUTPUT_VARIABLE check ERROR_VARIABLE progress)
if(NOT code EQUAL 0 OR NOT progress MATCHES "16 of 16 pages, 0 s left" OR NOT check MATCHES "learned +echo")
  message(FATAL_ERROR "fit ended with ${code}: ${progress}${check}")
endif()
if(NOT EXISTS ${model}.scores.safetensors)
  message(FATAL_ERROR "no predictor beside the model: ${progress}")
endif()
execute_process(COMMAND ${EVAL} ${compare} --policies learned,learned:echo=true,auto,echo --out ${WORK}/results
                RESULT_VARIABLE code OUTPUT_VARIABLE tables ERROR_VARIABLE progress)
if(NOT code EQUAL 0 OR NOT tables MATCHES "\\| learned \\|" OR NOT tables MATCHES "\\| learned:echo=true \\|")
  message(FATAL_ERROR "ended with ${code}: ${progress}${tables}")
endif()
# Scores of a predictor and of none are not mixed.
expect_refusal("was made with other settings" ${compare} --policies echo --score-predictor none --out ${WORK}/results)
file(APPEND ${model}.scores.safetensors "x")
file(COPY tests/data/engine/tiny_mha DESTINATION ${WORK})
expect_refusal("made for another model" --model ${WORK}/tiny_mha --text LICENSE --tasks perplexity --length 96
               --given 16 --policies echo --score-predictor ${model}.scores.safetensors --out ${WORK}/other)

# A folder whose layers have windows but for some; then one with a window in every layer.
file(COPY tests/data/engine/tiny_gemma3 tests/data/engine/tiny_mistral_window DESTINATION ${WORK})
execute_process(COMMAND ${EVAL} fit --model ${WORK}/tiny_gemma3 --text LICENSE --pages 8 --page-tokens 64 --force
                RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE progress)
if(NOT code EQUAL 0 OR NOT EXISTS ${WORK}/tiny_gemma3/scores.safetensors)
  message(FATAL_ERROR "fit of a model with windows ended with ${code}: ${progress}")
endif()
expect_refusal("--model: every layer has a window" fit --model ${WORK}/tiny_mistral_window --text LICENSE --pages 8
               --page-tokens 64)
