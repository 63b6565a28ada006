{{- define "gpuledger.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels of a component: (dict "root" $ "component" "agent"). */}}
{{- define "gpuledger.selector" -}}
app.kubernetes.io/name: gpuledger
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "gpuledger.labels" -}}
{{ include "gpuledger.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- define "gpuledger.account" -}}
{{- $account := (index .root.Values .component).serviceAccount -}}
{{- if $account.create -}}
{{- default (printf "%s-%s" (include "gpuledger.name" .root) .component) $account.name -}}
{{- else -}}
{{- default "default" $account.name -}}
{{- end -}}
{{- end -}}

{{- define "gpuledger.image" -}}
{{- $image := (index .root.Values .component).image -}}
{{ $image.repository }}:{{ default .root.Chart.AppVersion $image.tag }}
{{- end -}}

{{- define "gpuledger.collectorUrl" -}}
{{- if .Values.agent.collectorUrl -}}
{{ .Values.agent.collectorUrl }}
{{- else -}}
http{{ if .Values.collector.tlsSecret }}s{{ end }}://{{ include "gpuledger.name" . }}-collector.{{ .Release.Namespace }}.svc:8440
{{- end -}}
{{- end -}}

{{/* A probe of the collector: (dict "root" $ "path" "/healthz" "period" 20 "timeout" 10 "failures" 3). */}}
{{- define "gpuledger.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  {{- if .root.Values.collector.tlsSecret }}
  scheme: HTTPS
  {{- end }}
periodSeconds: {{ .period }}
timeoutSeconds: {{ .timeout }}
failureThreshold: {{ .failures }}
{{- end -}}
