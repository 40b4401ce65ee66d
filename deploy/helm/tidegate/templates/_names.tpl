{{- define "tidegate.name" -}}
{{- if contains "tidegate" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-tidegate" (.Release.Name | trunc 40 | trimSuffix "-") }}{{ end -}}
{{- end -}}

{{- define "tidegate.labels" -}}
{ app.kubernetes.io/name: tidegate, app.kubernetes.io/instance: {{ .Release.Name }} }
{{- end -}}

{{- /* What values contradict each other; a schema sees one value at a time. */ -}}
{{- define "tidegate.check" -}}
{{- if and (not .Values.store.url) (or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled) }}
{{- fail "several nodes without store.url would each count alone: set store.url, or replicas to 1" }}
{{- end }}
{{- if and .Values.podMonitor.enabled (not .Values.admin.secret) }}
{{- fail "podMonitor asks the admin listener, which needs a token: set admin.secret" }}
{{- end }}
{{- if and .Values.store.secret (not .Values.store.url) }}
{{- fail "store.secret is for a store that nodes share: set store.url" }}
{{- end }}
{{- end -}}
