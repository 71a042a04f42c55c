{{- define "hydrant.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if gt (int .Values.gpus) 0 -}}
{{- $_ := set $resources "limits" (merge (dict "nvidia.com/gpu" (int .Values.gpus | toString)) ($resources.limits | default dict)) -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{- define "hydrant.mounts" -}}
- {name: models, mountPath: /models, readOnly: true}
{{- if .Values.model.hubCache }}
- {name: hub-cache, mountPath: /cache}
{{- end }}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /etc/hydrant/tls, readOnly: true}
{{- end }}
{{- if .Values.tokens.secretName }}
- {name: tokens, mountPath: /etc/hydrant/tokens, readOnly: true}
{{- end }}
{{- end -}}

{{- define "hydrant.volumes" -}}
- name: models
{{- .Values.model.volume | toYaml | nindent 2 }}
{{- with .Values.model.hubCache }}
- name: hub-cache
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.tokens.secretName }}
- name: tokens
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}
