{{- /* A flag that is set. */ -}}
{{- define "hydrant.flag" -}}
{{- if ne (toString .value) "" }}
- {{ printf "--%s=%s" .name (toString .value) | quote }}
{{- end }}
{{- end -}}

{{- define "hydrant.args" -}}
- {{ printf "--model=%s" .Values.model.path | quote }}
- "--listen=0.0.0.0:{{ int .Values.ports.grpc }}"
{{- if not .Values.tls.secretName }}
- --insecure
{{- end }}
- "--metrics-listen=0.0.0.0:{{ int .Values.ports.metrics }}"
- "--drain-delay={{ int .Values.drain.delaySeconds }}"
- "--shutdown-timeout={{ int .Values.drain.timeoutSeconds }}"
- "--max-connection-age={{ int .Values.maxConnectionAgeSeconds }}"
{{- range .Values.cachePolicy.listenAs }}
- {{ printf "--listen-as=0.0.0.0:%d=%s" (int .port) .policy | quote }}
{{- end }}
{{- include "hydrant.flag" (dict "name" "served-model-name" "value" .Values.model.servedName) }}
{{- include "hydrant.flag" (dict "name" "default-cache-policy" "value" .Values.cachePolicy.default) }}
{{- include "hydrant.flag" (dict "name" "policy-under-pressure" "value" .Values.cachePolicy.underPressure) }}
{{- include "hydrant.flag" (dict "name" "kv-cache-memory-bytes" "value" .Values.memory.kvCache) }}
{{- include "hydrant.flag" (dict "name" "prefix-cache-memory-bytes" "value" .Values.memory.prefixCache) }}
{{- include "hydrant.flag" (dict "name" "context-memory-bytes" "value" .Values.memory.contexts) }}
{{- include "hydrant.flag" (dict "name" "swap-space" "value" .Values.memory.swapSpace) }}
{{- include "hydrant.flag" (dict "name" "target-ttft" "value" .Values.targets.ttft) }}
{{- include "hydrant.flag" (dict "name" "target-tpot" "value" .Values.targets.tpot) }}
{{- if .Values.tls.secretName }}
- --tls-certificate=/etc/hydrant/tls/tls.crt
- --tls-key=/etc/hydrant/tls/tls.key
{{- if .Values.tls.clientCa }}
- --tls-client-ca=/etc/hydrant/tls/ca.crt
{{- end }}
{{- end }}
{{- if .Values.tokens.secretName }}
- --auth-tokens=/etc/hydrant/tokens/tokens.yaml
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "hydrant.env" -}}
{{- if .Values.model.hubCache }}
- {name: HF_HOME, value: /cache}
{{- end }}
{{- with .Values.model.hubTokenSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: token}}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}
